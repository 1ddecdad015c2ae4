// The contrast (WCAG 2.2) of every text to what is behind it, or of marks to the ground of their drawing: [ratio, what].
// Colours are those that the browser computes, one over the other with their opacities; a halo is behind its text.
([ofText, marks]) => {
    const style = document.createElement("style");
    style.textContent = "* { pointer-events: auto !important; animation: none !important; transition: none !important }";
    document.head.append(style);
    const numbers = (colour) => (colour.match(/[\d.]+/g) ?? []).map(Number);
    const over = (colour, share, under) => {
        const [red, green, blue, alpha = 1] = numbers(colour);
        if (blue === undefined || colour.startsWith("url")) return under;
        return [red, green, blue].map((each, at) => each * alpha * share + under[at] * (1 - alpha * share));
    };
    const path = (at) => at ? [at, ...path(at.parentElement)] : [];
    const opacity = (at) => path(at).reduce((share, each) => share * getComputedStyle(each).opacity, 1);
    const ground = (at) => path(at).reverse().reduce((under, each) => each instanceof SVGElement ? under
        : over(getComputedStyle(each).backgroundColor, 1, under), [255, 255, 255]);
    const light = ([red, green, blue]) => [red, green, blue].map((each) => each / 255)
        .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
        .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
    const ratio = (one, other) => {
        const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const behind = (at, box) => document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2)
        .filter((each) => each instanceof SVGGeometryElement && !each.contains(at)).reverse()
        .reduce((under, each) => {
            const css = getComputedStyle(each);
            return over(css.fill, css.fillOpacity * opacity(each), under);
        }, ground(at));
    const found = [], seen = (at) => at.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (ofText && walker.nextNode()) {
        const at = walker.currentNode.parentElement, css = getComputedStyle(at), range = document.createRange();
        range.selectNodeContents(walker.currentNode);
        const box = range.getBoundingClientRect(), words = walker.currentNode.textContent.trim();
        if (!words || !box.width || !seen(at) || at.closest("title, script, style, option")) continue;
        const drawn = at instanceof SVGElement;
        let under = drawn ? behind(at, box) : ground(at);
        if (drawn && css.paintOrder.startsWith("stroke")) under = over(css.stroke, css.strokeOpacity * opacity(at), under);
        found.push([ratio(over(drawn ? css.fill : css.color, opacity(at), under), under), words]);
    }
    for (const at of marks ? document.querySelectorAll(marks) : []) {
        const css = getComputedStyle(at), box = at.getBoundingClientRect();
        if (!seen(at) || !(box.width * box.height || at.tagName === "line")) continue;
        const under = ground(at.parentElement), colours = [
            [css.backgroundColor, 1], [css.borderColor, parseFloat(css.borderWidth) > 0],
            ...(at instanceof SVGGeometryElement ? [[css.fill, css.fillOpacity], [css.stroke, css.strokeOpacity]] : [])];
        found.push([Math.max(...colours.map(([each, share]) => ratio(over(each, share * opacity(at), under), under))),
            [path(at).map((each) => each.getAttribute("class")).find(Boolean), ...colours].join(" ")]);
    }
    style.remove();
    return found;
}
