// @ts-check
// Elements: what the page shall look like is sketched anew after each change, and only what differs is touched. So the
// focus, the caret and the scroll positions stay. Text only ever becomes text nodes: tokens are not ours.

/** @typedef {Record<string, string | number | boolean | null | undefined>} Attributes */
/**
 * @typedef {object} Sketch
 * @property {string} tag
 * @property {Attributes} attributes
 * @property {any[]} children of the type Child: a type cannot name itself here
 */
/** @typedef {Sketch | string | number | boolean | null | undefined} One */
/** @typedef {One | One[] | (One | One[])[] | any[]} Child */

/** @param {string} tag @param {Attributes | null} [attributes] @param {...Child} children @returns {Sketch} */
const el = (tag, attributes, ...children) => ({ tag, attributes: attributes ?? {}, children });

const SVG = "http://www.w3.org/2000/svg";
/** What was last set on an element. @type {WeakMap<Element, Attributes>} */
const shown = new WeakMap();
/** The sketch that an element was last made from: the same one again needs no look. @type {WeakMap<Element, Sketch>} */
const drawnFrom = new WeakMap();

/** Make the children of an element what is sketched. @param {Element} parent @param {Child} children */
const patch = (parent, children) => {
  let node = filledIn(parent, parent.firstChild, children);
  while (node) {
    const after = node.nextSibling;
    node.remove();
    node = after;
  }
};

/**
 * Lists in lists are one list, and what is nothing is left out.
 * @param {Element} parent @param {ChildNode | null} node where the first one goes @param {Child} child
 * @returns {ChildNode | null} the node after the last one
 */
const filledIn = (parent, node, child) => {
  if (Array.isArray(child)) {
    for (const one of child) node = filledIn(parent, node, one);
    return node;
  }
  if (child === null || child === undefined || child === "" || typeof child === "boolean") return node;
  return (typeof child === "object" ? settled(parent, node, child) : settledText(parent, node, String(child))).nextSibling;
};

/** @param {Element} parent @param {ChildNode | null} node @param {string} text @returns {ChildNode} */
const settledText = (parent, node, text) => {
  if (node instanceof Text) {
    if (node.data !== text) node.data = text;
    return node;
  }
  return put(parent, node, document.createTextNode(text));
};

/** @param {Element} parent @param {ChildNode | null} node @param {Sketch} sketch @returns {ChildNode} */
const settled = (parent, node, sketch) => {
  const same = node instanceof Element && node.localName === sketch.tag;
  const inSvg = sketch.tag === "svg" || (parent.namespaceURI === SVG && parent.localName !== "foreignObject");
  const element = same ? node : inSvg ? document.createElementNS(SVG, sketch.tag) : document.createElement(sketch.tag);
  if (drawnFrom.get(element) !== sketch) {
    dress(element, sketch.attributes);
    patch(element, sketch.children);
    drawnFrom.set(element, sketch);
  }
  return same ? element : put(parent, node, element);
};

/**
 * In place of a node, or at the end.
 * @template {ChildNode} T @param {Element} parent @param {ChildNode | null} node @param {T} fresh @returns {T}
 */
const put = (parent, node, fresh) => {
  if (node) node.replaceWith(fresh);
  else parent.append(fresh);
  return fresh;
};

/** @param {Element} element @param {Attributes} attributes */
const dress = (element, attributes) => {
  const before = shown.get(element) ?? {};
  for (const name of Object.keys(before)) if (!(name in attributes)) set(element, name, null);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== before[name] || name === "value" || name === "checked") set(element, name, value);
  }
  shown.set(element, attributes);
};

/** `t` is a place on the colour scale: a policy that allows no style attribute allows this.
 * @param {Element} element @param {string} name @param {Attributes[string]} value */
const set = (element, name, value) => {
  const none = value === null || value === undefined || value === false;
  if (name === "value" && element instanceof HTMLInputElement) {
    if (element.value !== String(value ?? "")) element.value = String(value ?? "");
  } else if (name === "checked" && element instanceof HTMLInputElement) {
    element.checked = Boolean(value);
  } else if (name === "t" && element instanceof HTMLElement) {
    if (none) {
      element.style.removeProperty("--t");
      element.removeAttribute("data-t");
    } else {
      element.style.setProperty("--t", Number(value).toFixed(4));
      element.setAttribute("data-t", "");
    }
  } else if (none) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : String(value));
};
