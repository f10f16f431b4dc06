// SPDX-License-Identifier: Apache-2.0
// The few things this page does to its document. Text is always set as text.

// el makes an element with attributes and children. An attribute that is null is left out.
export function el(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes)) if (v != null) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

// say sets text only where it changes, so that a reader of the screen is not disturbed.
export function say(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

export function set(e, name, value) {
  if (value == null) e.removeAttribute(name);
  else if (e.getAttribute(name) !== String(value)) e.setAttribute(name, value);
}

export const show = (e, visible) => { if (e.hidden === visible) e.hidden = !visible; };

// each keeps one child of parent for each item, in their order: known ones stay the same
// element, so that what has the focus keeps it. make(item) makes one, draw(child, item)
// brings it up to date.
export function each(parent, items, key, make, draw) {
  const old = parent.byKey || new Map();
  const now = new Map();
  for (const item of items) {
    const k = key(item);
    const child = old.get(k) || make(item);
    old.delete(k);
    now.set(k, child);
    draw(child, item);
  }
  for (const gone of old.values()) {
    gone.dispatchEvent(new Event('gone'));
    gone.remove();
  }
  let at = parent.firstElementChild;
  for (const child of now.values()) {
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
  parent.byKey = now;
}
