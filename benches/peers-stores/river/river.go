package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
)

const (
	// The greatest number of connections.
	connections = 20
	// The most frequent polling that River allows.
	cooldown = river.FetchCooldownMin
	poll     = river.FetchPollIntervalMin
)

// keyArgs is a job for a key. River coalesces adds of a key while a job of it is queued or runs.
type keyArgs struct {
	Key string `json:"key"`
}

func (keyArgs) Kind() string { return "key" }

func (keyArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{UniqueOpts: river.UniqueOpts{
		ByArgs: true,
		// All states except those of finished jobs, whose rows are kept for a day.
		ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable,
			rivertype.JobStateRunning, rivertype.JobStateScheduled,
		},
	}}
}

type worker struct {
	river.WorkerDefaults[keyArgs]
	begun func(key string)
}

func (w *worker) Work(_ context.Context, job *river.Job[keyArgs]) error {
	w.begun(job.Args.Key)
	return nil
}

type bench struct {
	pool *pgxpool.Pool
	// This client only inserts.
	client *river.Client[pgx.Tx]
	// Keys are different in each round.
	keys atomic.Int64
}

func prepare(ctx context.Context, address string) (*bench, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: silent()})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	client, err := river.NewClient(driver, &river.Config{Logger: silent()})
	if err != nil {
		return nil, err
	}
	return &bench{pool: pool, client: client}, nil
}

func silent() *slog.Logger {
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

func (b *bench) nextKey() string {
	return "key-" + strconv.FormatInt(b.keys.Add(1), 10)
}

func (b *bench) insert(ctx context.Context, batch int) error {
	if batch == 1 {
		_, err := b.client.Insert(ctx, keyArgs{b.nextKey()}, nil)
		return err
	}
	params := make([]river.InsertManyParams, batch)
	for n := range params {
		params[n].Args = keyArgs{b.nextKey()}
	}
	_, err := b.client.InsertMany(ctx, params)
	return err
}

// fill inserts n jobs in the fastest way.
func (b *bench) fill(ctx context.Context, asked request) (answer, error) {
	start := time.Now()
	for left := asked.N; left > 0; {
		batch := min(left, 5000)
		params := make([]river.InsertManyParams, batch)
		for n := range params {
			params[n].Args = keyArgs{b.nextKey()}
		}
		if _, err := b.client.InsertManyFast(ctx, params); err != nil {
			return answer{}, err
		}
		left -= batch
	}
	return since(start, asked.N), nil
}

func (b *bench) add(ctx context.Context, asked request) (answer, error) {
	var (
		tasks  sync.WaitGroup
		done   atomic.Int64
		failed atomic.Pointer[error]
	)
	start := time.Now()
	end := start.Add(time.Duration(asked.Seconds * float64(time.Second)))
	for range asked.Tasks {
		tasks.Go(func() {
			for time.Now().Before(end) {
				if err := b.insert(ctx, asked.Batch); err != nil {
					failed.Store(&err)
					return
				}
				done.Add(int64(asked.Batch))
			}
		})
	}
	tasks.Wait()
	if err := failed.Load(); err != nil {
		return answer{}, *err
	}
	return since(start, int(done.Load())), nil
}

// working starts a client that works on jobs, and returns a channel of the completed ones.
func (b *bench) working(ctx context.Context, tasks int, begun func(string)) (<-chan *river.Event, func() error, error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{begun: begun})
	client, err := river.NewClient(riverpgxv5.New(b.pool), &river.Config{
		FetchCooldown:     cooldown,
		FetchPollInterval: poll,
		Logger:            silent(),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: tasks}},
		Workers:           workers,
	})
	if err != nil {
		return nil, nil, err
	}
	ended, stop := client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: 1_000_000,
		Kinds:    []river.EventKind{river.EventKindJobCompleted},
	})
	if err := client.Start(ctx); err != nil {
		return nil, nil, err
	}
	return ended, func() error {
		stop()
		return client.Stop(ctx)
	}, nil
}

// work measures from the first start of a job until the last completion is in the database.
func (b *bench) work(ctx context.Context, asked request) (answer, error) {
	var (
		first sync.Once
		start time.Time
	)
	ended, stop, err := b.working(ctx, asked.Tasks, func(string) { first.Do(func() { start = time.Now() }) })
	if err != nil {
		return answer{}, err
	}
	for range asked.N {
		select {
		case <-ended:
		case <-time.After(time.Minute):
			return answer{}, fmt.Errorf("no job has ended for a minute: %w", stop())
		}
	}
	told := since(start, asked.N)
	return told, stop()
}

// latency measures from before an insert until its job begins, with pauses of 5 to 15 ms between inserts.
func (b *bench) latency(ctx context.Context, asked request) (answer, error) {
	begun := make(chan time.Time, 1)
	_, stop, err := b.working(ctx, asked.Tasks, func(string) { begun <- time.Now() })
	if err != nil {
		return answer{}, err
	}
	// Let the workers start and become idle.
	time.Sleep(500 * time.Millisecond)
	took := make([]time.Duration, 0, asked.N)
	for range asked.N {
		time.Sleep(5*time.Millisecond + rand.N(10*time.Millisecond))
		start := time.Now()
		if err := b.insert(ctx, 1); err != nil {
			return answer{}, err
		}
		took = append(took, (<-begun).Sub(start))
	}
	slices.Sort(took)
	at := func(part float64) float64 {
		return float64(took[int(float64(len(took)-1)*part+0.5)].Nanoseconds())
	}
	return answer{Ops: asked.N, Latency: &quantiles{at(0.5), at(0.99)}}, cmp.Or(stop())
}
