// Browsers start no workers for pages that are opened from a folder. There the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.onload = () => {
        const inside = this.frame.contentWindow;
        inside.postMessage = (data) => {
          const event = new MessageEvent("message", { data });
          this.dispatchEvent(event);
          if (this.onmessage) this.onmessage(event);
        };
        inside.importScripts = (...urls) =>
          urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
        this.load(url).then(() => {
          this.ready = true;
          this.waiting.forEach((data) => this.postMessage(data));
        });
      };
      document.body.appendChild(this.frame);
    }

    load(url) {
      return new Promise((done, failed) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = new URL(url, location.href).href;
        script.onload = done;
        script.onerror = failed;
        this.frame.contentDocument.body.appendChild(script);
      });
    }

    postMessage(data) {
      if (!this.ready) {
        this.waiting.push(data);
        return;
      }
      const inside = this.frame.contentWindow;
      const event = new inside.MessageEvent("message", { data });
      inside.dispatchEvent(event);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
