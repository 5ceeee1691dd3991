// SPDX-License-Identifier: AGPL-3.0-only

// The settings of a queue: as arguments of CreateQueue and UpdateQueue, which say which of them are
// meant, and as the broker reports them.

package fila

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// HookErrorPolicy is what to do with a message whose on_enqueue hook fails.
type HookErrorPolicy string

// The policies.
const (
	// HookErrorDefault lets the message in under the fairness key "default".
	HookErrorDefault HookErrorPolicy = "default"
	// HookErrorReject refuses the enqueue with ErrHookFailed.
	HookErrorReject HookErrorPolicy = "reject"
)

// QueueConfig is all settings of a queue; zero values mean the default.
type QueueConfig struct {
	OnEnqueueScript      string
	OnFailureScript      string
	VisibilityTimeout    time.Duration
	MaxAttempts          uint32
	RetryDelay           time.Duration
	RetryDelayMax        time.Duration
	DefaultTTL           time.Duration
	IdempotencyWindow    time.Duration
	MaxMessages          uint64
	OnHookError          HookErrorPolicy
	HookTimeout          time.Duration
	HookMemoryLimitBytes uint64
	Quantum              uint32
}

// QueueSetting is one setting of a queue, for Client.CreateQueue and Client.UpdateQueue.
type QueueSetting struct {
	// path is the field's name in the contract.
	path  string
	apply func(*filapb.QueueConfig) error
}

// OnEnqueueScript sets the Lua source that defines on_enqueue(msg); "" means no hook.
func OnEnqueueScript(source string) QueueSetting {
	return setting("on_enqueue_script", func(q *filapb.QueueConfig) { q.OnEnqueueScript = source })
}

// OnFailureScript sets the Lua source that defines on_failure(msg, error, attempts); "" means none.
func OnFailureScript(source string) QueueSetting {
	return setting("on_failure_script", func(q *filapb.QueueConfig) { q.OnFailureScript = source })
}

// VisibilityTimeout sets how long a lease lasts; 0 takes the broker's default.
func VisibilityTimeout(timeout time.Duration) QueueSetting {
	return timeSetting("visibility_timeout_ms", timeout, func(q *filapb.QueueConfig, ms uint64) {
		q.VisibilityTimeoutMs = ms
	})
}

// MaxAttempts sets after how many failed deliveries a message is dead-lettered; 0 means no limit.
func MaxAttempts(count uint32) QueueSetting {
	return setting("max_attempts", func(q *filapb.QueueConfig) { q.MaxAttempts = count })
}

// RetryDelay sets the wait before the first retry when no hook decides; it doubles from then on.
func RetryDelay(delay time.Duration) QueueSetting {
	return timeSetting("retry_delay_ms", delay, func(q *filapb.QueueConfig, ms uint64) {
		q.RetryDelayMs = ms
	})
}

// RetryDelayMax sets the longest wait that doubling reaches; 0 means one hour.
func RetryDelayMax(delay time.Duration) QueueSetting {
	return timeSetting("retry_delay_max_ms", delay, func(q *filapb.QueueConfig, ms uint64) {
		q.RetryDelayMaxMs = ms
	})
}

// DefaultTTL sets the time to live of messages without their own; 0 keeps them until acked.
func DefaultTTL(ttl time.Duration) QueueSetting {
	return timeSetting("default_ttl_ms", ttl, func(q *filapb.QueueConfig, ms uint64) {
		q.DefaultTtlMs = ms
	})
}

// IdempotencyWindow sets how long idempotency keys are remembered; 0 means one day.
func IdempotencyWindow(window time.Duration) QueueSetting {
	return timeSetting("idempotency_window_ms", window, func(q *filapb.QueueConfig, ms uint64) {
		q.IdempotencyWindowMs = ms
	})
}

// MaxMessages sets how many messages the queue holds before it refuses more; 0 means no limit.
func MaxMessages(count uint64) QueueSetting {
	return setting("max_messages", func(q *filapb.QueueConfig) { q.MaxMessages = count })
}

// OnHookError sets what happens when on_enqueue fails.
func OnHookError(policy HookErrorPolicy) QueueSetting {
	return QueueSetting{"on_hook_error", func(q *filapb.QueueConfig) error {
		name := enumName("HOOK_ERROR_POLICY_", string(policy))
		number, isKnown := filapb.HookErrorPolicy_value[name]
		if !isKnown {
			return fmt.Errorf("%q is not a policy for failing hooks", policy)
		}
		q.OnHookError = filapb.HookErrorPolicy(number)
		return nil
	}}
}

// HookTimeout sets the longest a hook call may run; 0 takes the broker's default.
func HookTimeout(timeout time.Duration) QueueSetting {
	return timeSetting("hook_timeout_ms", timeout, func(q *filapb.QueueConfig, ms uint64) {
		q.HookTimeoutMs = uint32(min(ms, math.MaxUint32))
	})
}

// HookMemoryLimitBytes sets the most memory a hook may hold; 0 takes the broker's default.
func HookMemoryLimitBytes(limit uint64) QueueSetting {
	return setting("hook_memory_limit_bytes", func(q *filapb.QueueConfig) {
		q.HookMemoryLimitBytes = limit
	})
}

// Quantum sets the messages per unit of weight and turn; 0 takes the broker's default.
func Quantum(count uint32) QueueSetting {
	return setting("quantum", func(q *filapb.QueueConfig) { q.Quantum = count })
}

func setting(path string, apply func(*filapb.QueueConfig)) QueueSetting {
	return QueueSetting{path, func(q *filapb.QueueConfig) error {
		apply(q)
		return nil
	}}
}

func timeSetting(
	path string, value time.Duration, apply func(*filapb.QueueConfig, uint64),
) QueueSetting {
	return QueueSetting{path, func(q *filapb.QueueConfig) error {
		ms, err := milliseconds(strings.TrimSuffix(path, "_ms"), value, subject{})
		apply(q, ms)
		return err
	}}
}

// queueConfig is the settings, and the names of those that are meant.
func queueConfig(settings []QueueSetting, about subject) (*filapb.QueueConfig, []string, error) {
	config := &filapb.QueueConfig{}
	paths := make([]string, 0, len(settings))
	for _, each := range settings {
		if err := each.apply(config); err != nil {
			return nil, nil, invalid(err.Error(), about)
		}
		paths = append(paths, each.path)
	}
	return config, paths, nil
}

func readConfig(raw *filapb.QueueConfig) QueueConfig {
	policy := HookErrorDefault
	if raw.GetOnHookError() == filapb.HookErrorPolicy_HOOK_ERROR_POLICY_REJECT {
		policy = HookErrorReject
	}
	return QueueConfig{
		OnEnqueueScript:      raw.GetOnEnqueueScript(),
		OnFailureScript:      raw.GetOnFailureScript(),
		VisibilityTimeout:    duration(raw.GetVisibilityTimeoutMs()),
		MaxAttempts:          raw.GetMaxAttempts(),
		RetryDelay:           duration(raw.GetRetryDelayMs()),
		RetryDelayMax:        duration(raw.GetRetryDelayMaxMs()),
		DefaultTTL:           duration(raw.GetDefaultTtlMs()),
		IdempotencyWindow:    duration(raw.GetIdempotencyWindowMs()),
		MaxMessages:          raw.GetMaxMessages(),
		OnHookError:          policy,
		HookTimeout:          duration(uint64(raw.GetHookTimeoutMs())),
		HookMemoryLimitBytes: raw.GetHookMemoryLimitBytes(),
		Quantum:              raw.GetQuantum(),
	}
}

// enumName is the contract's name of an enum's value; that of "unspecified" for an empty one.
func enumName(prefix, value string) string {
	if value == "" {
		value = "unspecified"
	}
	return prefix + strings.ToUpper(value)
}

// enumValue is the reverse; empty for "unspecified" and for what a newer broker may send.
func enumValue(prefix string, names map[int32]string, number int32) string {
	value := strings.ToLower(strings.TrimPrefix(names[number], prefix))
	if value == "unspecified" {
		return ""
	}
	return value
}
