// A file, and buttons that act on it, once the server listens. `actions` are [name, label, whether it is the main one].
// If `form` selects a form, its fields write the file, until a person edits the file by hand: then the form is locked,
// so that only the file counts.
export default {
  props: { text: String, longest: Number, listens: Boolean, busy: Boolean, actions: Array, form: String },
  data: () => ({ wanted: null, isChanged: false }),
  emits: ["act", "fill"],
  mounted() {
    this.$refs.text.value = this.text;
    this.fields = this.form && document.querySelector(this.form);
    if (!this.fields) return;
    this.fields.addEventListener("input", this.filled);
    this.fields.addEventListener("submit", (event) => event.preventDefault()); // Enter in a field
  },
  beforeUnmount() {
    clearTimeout(this.timer);
  },
  watch: {
    listens() {
      if (this.wanted) this.act(this.wanted);
      else if (this.fields) this.filled(); // typed before the server listened
    },
    text() {
      if (!this.isChanged) this.$refs.text.value = this.text;
    },
  },
  methods: {
    values() {
      return this.fields && !this.isChanged ? Object.fromEntries(new FormData(this.fields)) : {};
    },
    filled() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.listens && !this.isChanged && this.$emit("fill", this.values()), 200);
    },
    change(isChanged) {
      this.isChanged = isChanged && Boolean(this.fields);
      if (this.fields) this.fields.querySelectorAll("fieldset").forEach((one) => (one.disabled = this.isChanged));
    },
    discard() {
      this.$refs.text.value = this.text;
      this.change(false);
    },
    act(name) {
      if (this.busy) return;
      this.wanted = this.listens ? null : name;
      if (this.listens) this.$emit("act", name, this.$refs.text.value, this.values());
    },
  },
  render() {
    const h = Vue.h;
    const field = {
      ref: "text", rows: 24, maxlength: this.longest, spellcheck: false, autocomplete: "off", autocapitalize: "off",
      onInput: () => this.change(this.$refs.text.value !== this.text),
    };
    const button = ([name, word, isMain]) =>
      h("button", { type: "button", class: isMain ? "main" : "", "aria-disabled": this.busy, onClick: () => this.act(name) }, word);
    const changed = h("p", { class: "more", role: "status" }, [
      "You edited the file by hand: the file counts, and the form above is locked.",
      h("button", { type: "button", onClick: this.discard }, "Discard the edits"),
    ]);
    return h("div", { class: "editor" }, [
      h("label", ["File", h("textarea", field)]),
      this.isChanged ? changed : null,
      h("div", { class: "more" }, this.actions.map(button)),
    ]);
  },
};
