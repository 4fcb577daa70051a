// Tables and views. An item is [name, kind, comment, columns], a column [name, type, comment].
export default {
  props: { items: Array },
  render() {
    const h = Vue.h;
    const column = ([name, type, comment]) => [h("dt", [h("code", name), " ", h("small", type)]), h("dd", comment)];
    return h("div", { class: "relations" }, this.items.map(([name, kind, comment, columns]) =>
      h("details", { key: name }, [
        h("summary", [h("code", name), " ", h("small", kind)]),
        comment ? h("p", { class: "explained" }, comment) : null,
        h("dl", columns.map(column)),
      ])));
  },
};
