// SPDX-License-Identifier: Apache-2.0
// Lets the search of the documents run from a disk. Browsers start no worker for a page of file://, so
// a hidden frame takes its place. MkDocs' plugin "offline" would fetch such a script from elsewhere.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.tell(data);
      inside.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(each)));
      this.ready = this.load(url);
    }

    load(url) {
      const inside = this.frame.contentDocument;
      return new Promise((resolve, reject) => {
        const script = inside.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = reject;
        inside.body.append(script);
      });
    }

    // From the worker to the page.
    tell(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      this.onmessage?.(event);
    }

    // From the page to the worker.
    postMessage(data) {
      this.ready.then(() => {
        const inside = this.frame.contentWindow;
        inside.dispatchEvent(new inside.MessageEvent("message", { data: structuredClone(data) }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
