// graphile-worker: a job by each key's name, of which a second add takes the first one's place.
import { EventEmitter } from "node:events";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { versionOf } from "./versions.js";

const logger = new Logger(() => () => {});
const connections = 20;

// As it is, with as many jobs at once as asked for.
export function prepare(address) {
  return prepared(address, {});
}

// With all that it has for many small jobs: it fetches them by the hundred, and ends them together.
export function prepareLocal(address) {
  return prepared(address, { localQueue: { size: 500 }, completeJobBatchDelay: 0 });
}

async function prepared(address, options) {
  const pgPool = new pg.Pool({ connectionString: address, max: connections });
  const utils = await makeWorkerUtils({ pgPool, logger });
  await utils.migrate();
  return {
    version: `${versionOf("graphile-worker")} (pg ${versionOf("pg")})`,

    async insert(keys) {
      if (keys.length === 1) {
        await utils.addJob("key", { key: keys[0] }, { jobKey: keys[0] });
      } else {
        await utils.addJobs(keys.map((key) => ({ identifier: "key", payload: { key }, jobKey: key })));
      }
    },

    async working(concurrentJobs, begin, end) {
      const events = new EventEmitter();
      events.on("job:complete", end);
      const runner = await run({
        pgPool,
        logger,
        events,
        noHandleSignals: true,
        taskList: { key: async () => void begin() },
        crontab: "",
        preset: { worker: { concurrentJobs, ...options } },
      });
      return () => runner.stop();
    },

    async end() {
      await utils.release();
      await pgPool.end();
    },
  };
}
