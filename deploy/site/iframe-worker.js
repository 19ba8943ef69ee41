// Browsers start no worker from a file, so on a site that is opened without a server the search runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe")
    #loaded

    constructor(address) {
      super()
      this.#frame.hidden = true
      document.documentElement.append(this.#frame)
      const { contentWindow: inside, contentDocument: page } = this.#frame
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = page.createElement("script")
      this.#loaded = new Promise((resolve) => script.addEventListener("load", resolve))
      script.src = address
      page.body.append(script)
    }

    async postMessage(data) {
      await this.#loaded
      const inside = this.#frame.contentWindow
      inside.dispatchEvent(new inside.MessageEvent("message", { data }))
    }
  }
}
