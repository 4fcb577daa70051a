// Keys that the page accepts anywhere, and buttons for them. A turn accepts one key, and none in its first moments, so
// that a key pressed twice, or held, cannot judge an item that the person has not seen.
const MOMENT = 300; // milliseconds; nobody reads a text faster

export default {
  props: { keys: Array, turn: Number, shown: Number, warning: String },
  data: () => ({ takes: false, helps: false }),
  mounted() {
    this.press = (event) => {
      if (event.repeat || event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.target.closest && event.target.closest("input, select, textarea")) return;
      const key = event.key.toLowerCase();
      if (key === "?") this.helps = !this.helps;
      else if (this.keys.some((one) => one.key === key)) this.take(key);
    };
    this.leave = () => this.$emit("leave");
    this.back = (event) => event.persisted && location.reload(); // the claims of this page were given back
    document.addEventListener("keydown", this.press);
    window.addEventListener("pagehide", this.leave);
    window.addEventListener("pageshow", this.back);
    this.begin();
  },
  beforeUnmount() {
    clearTimeout(this.timer);
    document.removeEventListener("keydown", this.press);
    window.removeEventListener("pagehide", this.leave);
    window.removeEventListener("pageshow", this.back);
  },
  watch: {
    turn() {
      this.begin();
    },
    shown() {
      const place = document.querySelector(".claim");
      if (place && place.getBoundingClientRect().top < 0) place.scrollIntoView(); // it was scrolled down
    },
  },
  methods: {
    begin() {
      this.takes = false;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => (this.takes = true), MOMENT);
    },
    take(key) {
      if (!this.takes) return;
      this.takes = false;
      this.$emit("take", key, this.turn);
    },
  },
  render() {
    const h = Vue.h;
    const button = (one) =>
      h("button", {
        type: "button", class: one.is_main ? "main" : "", "aria-disabled": !this.takes, "aria-keyshortcuts": one.key,
        title: one.help, onClick: () => this.take(one.key),
        onKeydown: (event) => event.repeat && event.preventDefault(), // holding Enter would click repeatedly
      }, [h("kbd", one.key), " " + one.word]);
    const help = h("button", { type: "button", class: "quiet", "aria-expanded": this.helps, "aria-keyshortcuts": "?",
      onClick: () => (this.helps = !this.helps) }, [h("kbd", "?"), " help"]);
    const explained = this.keys.map((one) => h("div", [h("dt", [h("kbd", one.key), " " + one.word]), h("dd", one.help)]));
    return h("div", { class: "keys", role: "group", "aria-label": "keys", "data-turn": this.turn, "data-takes": this.takes }, [
      this.warning ? h("p", { class: "notice", role: "alert" }, this.warning) : null,
      this.helps ? h("dl", { class: "help" }, explained) : null,
      h("div", { class: "pressed" }, [...this.keys.map(button), help]),
    ]);
  },
};
