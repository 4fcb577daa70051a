// Names with their values; line breaks in a text are kept.
export default {
  props: { items: Array },
  render() {
    const h = Vue.h;
    const value = (one) => (one.href ? h("a", { href: one.href }, one.text) : one.text);
    return h("dl", { class: "facts" }, this.items.map((one) => h("div", [h("dt", one.name), h("dd", [value(one)])])));
  },
};
