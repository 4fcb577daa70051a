// Emits a beat periodically while the page is visible, and at once when it becomes visible again.
export default {
  props: { seconds: Number },
  mounted() {
    this.last = Date.now();
    this.look = () => {
      if (document.visibilityState !== "visible" || Date.now() - this.last < 1000 * this.seconds - 50) return;
      this.last = Date.now();
      this.$emit("beat");
    };
    this.timer = setInterval(this.look, 1000 * this.seconds);
    document.addEventListener("visibilitychange", this.look);
  },
  beforeUnmount() {
    clearInterval(this.timer);
    document.removeEventListener("visibilitychange", this.look);
  },
  render() {
    return null;
  },
};
