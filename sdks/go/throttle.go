// SPDX-License-Identifier: AGPL-3.0-only

// Throttle keys: what they let through, and the operator's hand on them.

package fila

import (
	"context"
	"time"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// ThrottleKeyStats is one throttle key: its token bucket and its concurrency limit.
type ThrottleKeyStats struct {
	Key              string
	Tokens           float64
	RatePerSecond    float64
	Burst            float64
	Passed           uint64
	Blocked          uint64
	ConcurrencyLimit uint32
	InFlight         uint32
	// PausedUntil is when a pause ends by itself; zero when there is none, or none that does.
	PausedUntil      time.Time
	Waiting          uint64
	PassedPerSecond  float64
	BlockedPerSecond float64
	// Pattern is the one whose setting applies; empty for a setting of the key's own, or none.
	Pattern string
	// IsUnset says that the key is in use and nobody configured it.
	IsUnset bool
	// IsPaused says that an operator paused the key.
	IsPaused bool
}

// ThrottleFilter says which throttle keys to list; the zero value lists all.
type ThrottleFilter struct {
	// Prefix is what keys start with.
	Prefix string
	// IsUnset chooses keys in use that nobody configured.
	IsUnset bool
	// Limit is the most keys to return; 0 means 1000.
	Limit uint32
}

// ThrottlePage is some throttle keys, by key. TotalCount includes those beyond the limit.
type ThrottlePage struct {
	Throttles  []ThrottleKeyStats
	TotalCount uint64
}

// ListThrottles returns throttle keys that are configured or in use.
func (c *Client) ListThrottles(ctx context.Context, filter ThrottleFilter) (ThrottlePage, error) {
	request := &filapb.ListThrottlesRequest{
		Prefix: filter.Prefix, Unset: filter.IsUnset, Limit: filter.Limit,
	}
	answer, err := repeatedly(
		ctx, c.connection, c.connection.admin.ListThrottles, request, subject{},
	)
	if err != nil {
		return ThrottlePage{}, err
	}
	return ThrottlePage{
		Throttles:  each(answer.GetThrottles(), readThrottleStats),
		TotalCount: answer.GetTotalCount(),
	}, nil
}

// PauseThrottle stops deliveries with a throttle key in all queues, for a time or with 0 until it
// is resumed.
func (c *Client) PauseThrottle(ctx context.Context, key string, pause time.Duration) error {
	ms, err := milliseconds("pause", pause, subject{})
	if err != nil {
		return err
	}
	request := &filapb.PauseRequest{ThrottleKey: key, DurationMs: ms}
	_, err = once(ctx, c.connection, c.connection.admin.Pause, request, subject{})
	return err
}

// ResumeThrottle starts deliveries with a throttle key again, whoever stopped them.
func (c *Client) ResumeThrottle(ctx context.Context, key string) error {
	request := &filapb.ResumeRequest{ThrottleKey: key}
	_, err := once(ctx, c.connection, c.connection.admin.Resume, request, subject{})
	return err
}

func readThrottleStats(raw *filapb.PerThrottleKeyStats) ThrottleKeyStats {
	return ThrottleKeyStats{
		Key:              raw.GetKey(),
		Tokens:           raw.GetTokens(),
		RatePerSecond:    raw.GetRatePerSecond(),
		Burst:            raw.GetBurst(),
		Passed:           raw.GetPassed(),
		Blocked:          raw.GetBlocked(),
		ConcurrencyLimit: raw.GetConcurrencyLimit(),
		InFlight:         raw.GetInFlight(),
		PausedUntil:      moment(raw.GetPausedUntil()),
		Waiting:          raw.GetWaiting(),
		PassedPerSecond:  raw.GetPassedPerSecond(),
		BlockedPerSecond: raw.GetBlockedPerSecond(),
		Pattern:          raw.GetPattern(),
		IsUnset:          raw.GetUnset(),
		IsPaused:         raw.GetPaused(),
	}
}
