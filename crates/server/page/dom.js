// Builds DOM nodes. The page never parses markup: there is no innerHTML anywhere, and the
// Content-Security-Policy (Trusted Types) makes the browser refuse it.

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {Node | string | number | null | undefined | false} Child
 * @typedef {Record<string, unknown>} Props Attributes; `on` holds event listeners, `style` custom
 *   properties and styles, and names that begin with a dot are properties of the node.
 */

/**
 * Sets attributes, properties, listeners and styles of a node.
 * @param {Element} node
 * @param {Props} props
 */
function set(node, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "style") {
      for (const [property, text] of Object.entries(value)) node.style.setProperty(property, String(text));
    } else if (name.startsWith(".")) {
      node[name.slice(1)] = value;
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

/**
 * @param {Node} node
 * @param {Child[]} children
 */
function append(node, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/**
 * An HTML element.
 * @param {string} tag
 * @param {Props} [props]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElement}
 */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  append(node, children);
  set(node, props);
  return node;
}

/**
 * An SVG element.
 * @param {string} tag
 * @param {Props} [props]
 * @param {...(Child | Child[])} children
 * @returns {SVGElement}
 */
export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  append(node, children);
  set(node, props);
  return node;
}

/**
 * Replaces the children of a node.
 * @param {Element} node
 * @param {...(Child | Child[])} children
 */
export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
}

/**
 * A button with a text.
 * @param {string} text
 * @param {(event: Event) => void} click
 * @param {Props} [props]
 */
export function button(text, click, props = {}) {
  return h("button", { type: "button", ...props, on: { click } }, text);
}

let count = 0;

/** An id that no other node of the page has. @param {string} prefix */
export const freshId = (prefix) => `${prefix}-${++count}`;

/**
 * A labelled form control; the label stands above it.
 * @param {string} text
 * @param {HTMLElement} control
 * @param {string} [hint] What the control expects, read with it by screen readers.
 */
export function field(text, control, hint) {
  control.id ||= freshId("field");
  const described = hint && freshId("hint");
  if (described) control.setAttribute("aria-describedby", described);
  return h(
    "div",
    { class: "field" },
    h("label", { for: control.id }, text),
    control,
    hint && h("p", { class: "hint", id: described }, hint),
  );
}

/**
 * A message that tells what to do: of an empty panel, of work in progress, or of an error.
 * @param {"empty" | "busy" | "error"} kind
 * @param {...(Child | Child[])} children
 */
export function notice(kind, ...children) {
  return h("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : "status" }, ...children);
}

/**
 * Copies a text, and says so on the button for a moment. Browsers offer the clipboard only to pages
 * from this machine or over https; elsewhere the text is selected for the person to copy.
 * @param {HTMLButtonElement} from
 * @param {Node} source
 */
export async function copy(from, source) {
  const label = from.textContent;
  try {
    await navigator.clipboard.writeText(source.textContent);
    from.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    from.textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => (from.textContent = label), 1500);
}
