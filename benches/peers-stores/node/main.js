// graphile-worker and BullMQ as contestants of `make bench-store`: they run rounds as requested on
// standard input. ../README.md describes the protocol and each scenario.
import { createInterface } from "node:readline";
import * as bullmq from "./bullmq.js";
import * as graphileWorker from "./graphile-worker.js";

const contestants = {
  bullmq: bullmq.prepare,
  "graphile-worker": graphileWorker.prepare,
  "graphile-worker-local": graphileWorker.prepareLocal,
};

const [name, address] = process.argv.slice(2);
const prepare = contestants[name];
if (!prepare || !address) {
  console.error(`say which contestant, and its address; there are ${Object.keys(contestants).join(", ")}`);
  process.exit(1);
}
const { version, end, ...peer } = await prepare(address);
const scenarios = { ...peer, ...common(peer) };
delete scenarios.insert;
delete scenarios.working;

const tell = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);
tell({ contestant: name, version: `${version} (Node ${process.versions.node})`, scenarios: Object.keys(scenarios).sort() });
for await (const line of createInterface({ input: process.stdin })) {
  try {
    const asked = { tasks: 1, batch: 1, ...JSON.parse(line) };
    const run = scenarios[asked.scenario];
    if (!run) throw new Error(`no scenario is called ${JSON.stringify(asked.scenario)}`);
    tell(await run(asked));
  } catch (error) {
    tell({ error: String(error?.stack ?? error) });
  }
}
await end();
process.exit(0);

// The scenarios, in terms of a peer's functions: `insert` adds keys, and `working` lets workers
// process them.
function common({ insert, working }) {
  // Keys are different in each round.
  let last = 0;
  const keys = (n) => Array.from({ length: n }, () => `key-${(last += 1)}`);
  return {
    // Adds n keys in the fastest way.
    async fill({ n }) {
      const start = process.hrtime.bigint();
      for (let left = n; left > 0; left -= 1000) await insert(keys(Math.min(left, 1000)));
      return since(start, n);
    },

    async add({ tasks, batch, seconds }) {
      let ops = 0;
      const start = process.hrtime.bigint();
      const end = start + BigInt(Math.round(seconds * 1e9));
      const task = async () => {
        while (process.hrtime.bigint() < end) {
          await insert(keys(batch));
          ops += batch;
        }
      };
      await Promise.all(Array.from({ length: tasks }, task));
      return since(start, ops);
    },

    // Measures from the first start of a job until the last completion is in the database.
    async work({ n, tasks }) {
      let start;
      let ended = 0;
      let answer;
      let stop;
      await new Promise((resolve, reject) => {
        const begin = () => (start ??= process.hrtime.bigint());
        const end = () => {
          ended += 1;
          if (ended === n) resolve((answer = since(start, n)));
        };
        stop = working(tasks, begin, end);
        stop.catch(reject);
      });
      await (await stop)();
      return answer;
    },

    // Measures from before an add until its job starts, with pauses of 5 to 15 ms between adds.
    async latency({ n, tasks }) {
      let begun;
      const stop = await working(tasks, () => begun(process.hrtime.bigint()), () => {});
      // Let the workers start and become idle.
      await pause(500);
      const took = [];
      for (let left = n; left > 0; left -= 1) {
        await pause(5 + Math.random() * 10);
        const begins = new Promise((resolve) => (begun = resolve));
        const start = process.hrtime.bigint();
        await insert(keys(1));
        took.push(Number((await begins) - start));
      }
      await stop();
      took.sort((a, b) => a - b);
      const at = (part) => took[Math.round((took.length - 1) * part)];
      return { ops: n, latency_ns: { p50: at(0.5), p99: at(0.99) } };
    },
  };
}

function since(start, ops) {
  return { ops, wall_ns: Number(process.hrtime.bigint() - start) };
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
