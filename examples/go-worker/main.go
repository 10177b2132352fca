// Go-worker runs a command for each key of a queue in PostgreSQL, up to eight at the same time. The key is the last
// argument of the command: `go-worker postgres://db/app mail ./send`. SIGTERM ends the worker after its runs.
package main

import (
	"context"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type delivery struct {
	Key   []byte
	Token int64
}

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: go-worker STORE QUEUE COMMAND [ARGUMENT]...")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	queue, pool := os.Args[2], must(pgxpool.New(ctx, os.Args[1]))
	session := must(pool.Acquire(ctx)) // One session claims keys and hears notifications.
	slots := make(chan struct{}, 8)
	for ctx.Err() == nil {
		slots <- struct{}{} // A slot is free.
		<-slots
		// A signal does not interrupt the claim, because the keys of a lost answer would wait for the end of their leases.
		rows, _ := session.Query(context.Background(), "select key, token from requeue.claim($1, $2, $3)",
			queue, must(os.Hostname()), cap(slots)-len(slots))
		claimed := must(pgx.CollectRows(rows, pgx.RowToStructByPos[delivery]))
		for _, d := range claimed {
			slots <- struct{}{}
			go func() { work(pool, queue, d); <-slots }()
		}
		if len(claimed) == 0 {
			var pause time.Duration
			must(0, session.QueryRow(context.Background(), "select requeue.listen($1)", queue).Scan(&pause))
			wait, cancel := context.WithTimeout(ctx, pause)
			if _, err := session.Conn().WaitForNotification(wait); wait.Err() == nil {
				must(0, err)
			}
			cancel()
		}
	}
	for range cap(slots) { // Waits for the runs.
		slots <- struct{}{}
	}
}

func work(pool *pgxpool.Pool, queue string, d delivery) {
	ctx, kill := context.WithCancel(context.Background())
	defer kill()
	command := exec.CommandContext(ctx, os.Args[3], append(os.Args[4:len(os.Args):len(os.Args)], string(d.Key))...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	call := func(function string, answer any, more ...any) {
		args := append([]any{queue, d.Key, d.Token}, more...)
		if err := pool.QueryRow(context.Background(), "select requeue."+function, args...).Scan(answer); err != nil {
			log.Printf("%s: %v", d.Key, err) // The lease expires, or the next renewal succeeds.
		}
	}
	ended, lease, held, renew := make(chan error), "", true, time.Tick(10*time.Second)
	go func() { ended <- command.Run() }()
	for {
		select {
		case <-renew:
			if call("renew_lease($1, $2, $3)", &lease); lease == "lost" || lease == "cancelled" {
				kill()
			}
			continue
		case err := <-ended:
			if lease == "cancelled" {
				call("cancelled($1, $2, $3)", &held)
			} else if err != nil {
				call("fail($1, $2, $3, $4)", &held, err.Error())
			} else {
				call("complete($1, $2, $3)", &held)
			}
		}
		if !held {
			log.Printf("%s: the lease expired during the run", d.Key)
		}
		return
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
