// Tokens of a sequence. An item is [text, first, last, id, logprob, version, trained]; id, logprob and version are null
// in a masked stretch, which covers the positions first to last. The numbers of the selected item are shown below, for
// people who use touch or keys and cannot hover.
const NATS = 5; // log-probability at which the colour is strongest

const numbers = ([, first, last, id, logprob, version, trained]) => {
  const at = first === last ? "position " + first : "positions " + first + " to " + last;
  if (!trained) return at + ", masked: not trained on";
  const said = logprob === null ? "no log-probability" : "log-probability " + logprob.toFixed(3) + " nats";
  return at + ", id " + id + ", " + said + (version === null ? "" : ", version " + version);
};

export default {
  props: { items: Array },
  data: () => ({ chosen: null }),
  methods: {
    choose(event) {
      const place = event.target.dataset.place;
      if (place !== undefined) this.chosen = Number(place);
    },
    walk(event) {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!way || !this.items.length) return;
      event.preventDefault();
      const next = this.chosen === null ? 0 : this.chosen + way;
      this.chosen = Math.max(0, Math.min(this.items.length - 1, next));
      Vue.nextTick(() => this.$el.querySelector(".chosen").scrollIntoView({ block: "nearest" }));
    },
  },
  render() {
    const h = Vue.h;
    let before = null;
    const children = [];
    this.items.forEach((item, place) => {
      const [text, , , , logprob, version, trained] = item;
      if (trained && version !== null && version !== before) {
        children.push(h("b", { class: "version", title: "sampled by policy version " + version }, "v" + version));
        before = version;
      }
      const kind = (trained ? "token" : "masked") + (place === this.chosen ? " chosen" : "");
      const strength = logprob === null ? 0 : Math.min(1, -logprob / NATS);
      const style = trained ? { "--heat": strength.toFixed(3) } : null;
      children.push(h("span", { class: kind, title: numbers(item), style, "data-place": place }, text));
    });
    const region = { class: "tokens", tabindex: 0, role: "region", "aria-label": "tokens", onClick: this.choose, onKeydown: this.walk };
    const said = this.chosen === null ? "" : numbers(this.items[this.chosen]);
    return h("div", [h("div", region, children), h("p", { class: "numbers", "aria-live": "polite" }, said)]);
  },
};
