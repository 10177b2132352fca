// graphile-worker: one job per key, named by the key. A second add replaces the job of the first.
import { EventEmitter } from "node:events";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { versionOf } from "./versions.js";

const logger = new Logger(() => () => {});
const connections = 20;

// The default settings, with the requested number of jobs at once.
export function prepare(address) {
  return prepared(address, {});
}

// The settings for many small jobs: it fetches hundreds at a time, and completes them together.
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
