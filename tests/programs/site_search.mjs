// The first result of each query, asked of a built site as its page does: node site_search.mjs SITE QUERY...
// The site's own worker runs here with the messages that the page sends it; 0 gives it the index, and 2 is a query.
import fs from "node:fs";
import vm from "node:vm";

const [site, ...queries] = process.argv.slice(2);
const workers = `${site}/assets/javascripts/workers/`;
const worker = fs.readdirSync(workers).find((name) => /^search\..*\.js$/.test(name));
const { config, docs } = JSON.parse(fs.readFileSync(`${site}/search/search_index.json`));
let ask, answered;
globalThis.self = globalThis;
globalThis.addEventListener = (_, listener) => (ask = listener);
globalThis.postMessage = (message) => answered(message.data);
vm.runInThisContext(fs.readFileSync(workers + worker, "utf8"));

const answer = (type, data) => new Promise((resolve) => ((answered = resolve), ask({ data: { type, data } })));
await answer(0, { config, docs, options: { suggest: false } });
for (const query of queries) console.log((await answer(2, query)).items[0]?.[0].location ?? "nothing");
