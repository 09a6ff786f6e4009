// Browsers start no workers on pages opened from disk: there a hidden frame of the page does the work, the search.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.loaded = new Promise(resolve => {
        const script = inner.document.createElement("script")
        script.src = new URL(url, location.href)
        script.onload = resolve
        inner.document.body.append(script)
      })
    }
    async postMessage(data) {
      await this.loaded
      const inner = this.frame.contentWindow
      inner.dispatchEvent(new inner.MessageEvent("message", { data }))
    }
    terminate() { this.frame.remove() }
  }
}
