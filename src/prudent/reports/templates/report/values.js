// Data, words and elements. Numbers come as text where they are shown, and as numbers to sort and draw.

const data = JSON.parse(document.getElementById("data").textContent);
const { runs, cells } = data;
const $ = (id) => document.getElementById(id);
const unique = (values) => [...new Set(values)];
const places = (table) => table.kind.map((_, index) => index);

function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value; else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const LONGEST = 60;
const MARKUP = { "&": "&amp;", "<": "&lt;", ">": "&gt;", $: "&#36;" }; // a dollar would begin a formula
const plain = (text) => String(text).replace(/[&<>$]/g, (sign) => MARKUP[sign]);
const short = (text, most = LONGEST) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const inPlot = (text) => plain(short(String(text)));
const spaced = (key) => key.replaceAll("_", " ");
const whole = (value) => (value === null ? "?" : value.toLocaleString("en-US"));
const several = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;
const few = (texts, most = 12) => {
  const more = texts.length > most ? `; and ${texts.length - most} more, in the data to download` : "";
  return texts.slice(0, most).join("; ") + more;
};
