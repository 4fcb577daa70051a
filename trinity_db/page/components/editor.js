// A text field for a statement. Ctrl-Enter and the button run it, once the server listens; `mark` is [first, end], the
// range of characters that are wrong.
export default {
  props: { text: String, longest: Number, listens: Boolean, runs: Boolean, mark: Array },
  data: () => ({ isWanted: false }),
  emits: ["run", "cancel"],
  mounted() {
    this.$refs.text.value = this.text;
  },
  watch: {
    listens() {
      if (this.isWanted) this.run();
    },
    mark(place) {
      if (!place) return;
      this.$refs.text.focus();
      this.$refs.text.setSelectionRange(place[0], place[1]);
    },
  },
  methods: {
    run() {
      this.isWanted = !this.listens;
      if (this.listens) this.$emit("run", this.$refs.text.value);
    },
    pressed(event) {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.run();
    },
  },
  render() {
    const h = Vue.h;
    const field = { ref: "text", rows: 9, maxlength: this.longest, spellcheck: false, autocomplete: "off", autocapitalize: "off", onKeydown: this.pressed };
    const cancel = h("button", { type: "button", onClick: () => this.$emit("cancel") }, "Cancel");
    return h("div", { class: "editor" }, [
      h("label", ["Statement", h("textarea", field)]),
      h("div", { class: "more" }, [
        h("button", { type: "button", class: "main", onClick: this.run }, "Run"),
        this.runs ? cancel : null,
        h("span", "Or press Ctrl-Enter."),
      ]),
    ]);
  },
};
