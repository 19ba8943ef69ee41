package main

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	postgresTable = `CREATE TABLE IF NOT EXISTS messages (
		queue bigint NOT NULL, partition int NOT NULL, id bigserial, expires timestamptz NOT NULL, body text NOT NULL,
		PRIMARY KEY (queue, partition, id))`
	postgresInsert = `INSERT INTO messages (queue, partition, expires, body)
		SELECT $2, 1, now() + '3 days', body FROM unnest($1::text[]) AS body`
	postgresRead = `SELECT id, expires, body FROM messages
		WHERE queue = 1 AND partition = 1 AND id > $1 ORDER BY id LIMIT $2`
	postgresClaim = `SELECT id, body FROM messages WHERE queue = 1 AND partition = 1
		ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED`
	postgresDone = `DELETE FROM messages WHERE queue = 1 AND partition = 1 AND id = $1`
)

type postgresCaller struct {
	pool   *pgxpool.Pool
	queues int
	last   int64
}

func openPostgres(ctx context.Context, plan Plan, _ string) ([]Caller, error) {
	settings, err := pgxpool.ParseConfig(plan.Address)
	if err != nil {
		return nil, err
	}
	settings.MaxConns = int32(plan.Callers)
	pool, err := pgxpool.NewWithConfig(ctx, settings)
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, postgresTable); err != nil {
		return nil, err
	}
	callers := make([]Caller, plan.Callers)
	for number := range callers {
		callers[number] = &postgresCaller{pool: pool, queues: plan.Queues}
	}
	return callers, nil
}

func (caller *postgresCaller) Post(ctx context.Context, bodies []string) error {
	_, err := caller.pool.Exec(ctx, postgresInsert, bodies, 1+rand.IntN(caller.queues))
	return err
}

func (caller *postgresCaller) Read(ctx context.Context) (int, error) {
	rows, err := caller.pool.Query(ctx, postgresRead, caller.last, ReadSize)
	if err != nil {
		return 0, err
	}
	found := 0
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return 0, err
		}
		caller.last = values[0].(int64)
		found++
	}
	if found < ReadSize {
		caller.last = 0
	}
	return found, rows.Err()
}

// Job claims and acknowledges in one transaction, which holds the row while the job runs.
func (caller *postgresCaller) Job(ctx context.Context) (bool, error) {
	found := false
	err := pgx.BeginFunc(ctx, caller.pool, func(transaction pgx.Tx) error {
		var id int64
		var body string
		err := transaction.QueryRow(ctx, postgresClaim).Scan(&id, &body)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		found = true
		_, err = transaction.Exec(ctx, postgresDone, id)
		return err
	})
	return found, err
}
