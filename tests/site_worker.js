// The worker of a page that is a file: browsers start no worker from a file, so this one runs in a frame.
// Material for MkDocs looks for the name IFrameWorker, and waits for what importScripts returns.
"use strict";
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
      this.inside.importScripts = async (...urls) => {
        for (const each of urls) await this.load(each);
      };
      this.loaded = this.load(url);
    }

    load(url) {
      const script = this.inside.document.createElement("script");
      script.src = new URL(url, location.href);
      return new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = reject;
        this.inside.document.body.append(script);
      });
    }

    async postMessage(data) {
      await this.loaded;
      this.inside.dispatchEvent(new MessageEvent("message", {data}));
    }
  };
}
