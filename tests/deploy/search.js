// Queries the site's own search, which a browser runs in a worker: node search.js SITE < queries, one a line.
// Prints a line of JSON for each query: the pages found, best first.
const fs = require("fs")
const path = require("path")

const site = process.argv[2]
const workers = path.join(site, "assets/javascripts/workers")
const script = path.join(workers, fs.readdirSync(workers).find((name) => name.endsWith(".js")))

let listener, answered
Object.assign(globalThis, {
  self: globalThis,
  addEventListener: (_, heard) => { listener = heard },
  postMessage: (data) => answered(data),
})
eval.call(globalThis, fs.readFileSync(script, "utf8"))

const ask = (data) => new Promise((resolve) => {
  answered = resolve
  listener({ data })
})

async function main() {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"))
  await ask({ type: 0, data: { ...index, options: {} } })
  for (const query of fs.readFileSync(0, "utf8").trim().split("\n")) {
    const { data } = await ask({ type: 2, data: query })
    console.log(JSON.stringify(data.items.map((found) => found[0].location.split("#")[0])))
  }
}

main()
