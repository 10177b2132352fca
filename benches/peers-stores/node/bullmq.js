// BullMQ: one job per key, named by the key. An add has no effect until that job is completed and
// removed.
import { Queue, Worker } from "bullmq";
import Redis from "ioredis";
import { versionOf } from "./versions.js";

const over = { removeOnComplete: true, removeOnFail: true };

export async function prepare(address) {
  const connection = new Redis(address, { maxRetriesPerRequest: null });
  const queue = new Queue("bench", { connection });
  await queue.waitUntilReady();

  const job = (key) => ({ name: "key", data: { key }, opts: { jobId: key, ...over } });
  return {
    version: `${versionOf("bullmq")} (ioredis ${versionOf("ioredis")})`,

    async insert(keys) {
      if (keys.length === 1) {
        const { name, data, opts } = job(keys[0]);
        await queue.add(name, data, opts);
      } else {
        await queue.addBulk(keys.map(job));
      }
    },

    async working(concurrency, begin, end) {
      const worker = new Worker("bench", async () => void begin(), { connection: connection.duplicate(), concurrency });
      worker.on("completed", end);
      await worker.waitUntilReady();
      return () => worker.close();
    },

    async end() {
      await queue.close();
      connection.disconnect();
    },
  };
}
