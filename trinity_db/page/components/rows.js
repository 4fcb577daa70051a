// A table. A cell is {text, href, kind, hint, ticks}, or a plain text; each text becomes a text node. On narrow screens
// a row is a card.
export default {
  props: { caption: String, columns: Array, rows: Array, empty: String },
  render() {
    const h = Vue.h;
    if (!this.rows.length) return h("p", { class: "empty" }, this.empty);
    const cell = (given, place) => {
      const one = typeof given === "string" ? { text: given } : given;
      const column = this.columns[place];
      const inner = one.href ? h("a", { href: one.href }, one.text) : one.kind ? h("span", { class: "chip " + one.kind }, one.text) : one.text;
      const attributes = { class: [column.kind, one.text === "" ? "nothing" : ""], "data-label": column.label, title: one.hint };
      const box = one.ticks && h("input", { type: "checkbox", name: "run", value: one.text, form: one.ticks, "aria-label": "Compare " + one.text });
      return place === 0 ? h("th", { ...attributes, scope: "row" }, box ? [box, inner] : [inner]) : h("td", attributes, [inner]);
    };
    const head = this.columns.map((one) => h("th", { scope: "col", class: one.kind, title: one.hint }, one.label));
    return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": this.caption }, [
      h("table", { class: "rows" }, [
        h("thead", h("tr", head)),
        h("tbody", this.rows.map((row) => h("tr", { key: row[0].ticks ? row[0].text : undefined }, row.map(cell)))),
      ]),
    ]);
  },
};
