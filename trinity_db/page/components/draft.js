// A file that a person may change, and buttons that do something with it, once the server listens. `actions` are
// [name, word, whether it is the main one].
export default {
  props: { text: String, longest: Number, listens: Boolean, busy: Boolean, actions: Array },
  data: () => ({ wanted: null }),
  emits: ["act"],
  mounted() {
    this.$refs.text.value = this.text;
  },
  watch: {
    listens() {
      if (this.wanted) this.act(this.wanted);
    },
  },
  methods: {
    act(name) {
      if (this.busy) return;
      this.wanted = this.listens ? null : name;
      if (this.listens) this.$emit("act", name, this.$refs.text.value);
    },
  },
  render() {
    const h = Vue.h;
    const field = { ref: "text", rows: 24, maxlength: this.longest, spellcheck: false, autocomplete: "off", autocapitalize: "off" };
    const button = ([name, word, isMain]) =>
      h("button", { type: "button", class: isMain ? "main" : "", "aria-disabled": this.busy, onClick: () => this.act(name) }, word);
    return h("div", { class: "editor" }, [
      h("label", ["File", h("textarea", field)]),
      h("div", { class: "more" }, this.actions.map(button)),
    ]);
  },
};
