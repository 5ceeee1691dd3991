// SPDX-License-Identifier: AGPL-3.0-only

// The shapes of requests and replies, and how they become the SDK's values and errors.

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	fila "github.com/faiscadev/fila/sdks/go"
)

// key is a name that the runner gave to something: any JSON value, kept as it was written.
type key string

func (k *key) UnmarshalJSON(raw []byte) error { //nolint:unparam // An interface wants it so.
	*k = key(raw)
	return nil
}

func (k key) orNull() string {
	if k == "" {
		return "null"
	}
	return string(k)
}

// request has the fields of all requests; each uses some.
type request struct {
	message

	ID        key    `json:"id"`
	Op        string `json:"op"`
	Client    key    `json:"client"`
	Consumer  key    `json:"consumer"`
	Worker    key    `json:"worker"`
	TimeoutMS *int64 `json:"timeout_ms"`

	// Target is an address for connect and a request's id for cancel.
	Target  key        `json:"target"`
	APIKey  *string    `json:"api_key"`
	TLS     *tlsFiles  `json:"tls"`
	Options connecting `json:"options"`

	Messages []message `json:"messages"`
	Count    uint64    `json:"count"`

	MaxInFlight         *uint32 `json:"max_in_flight"`
	BatchSize           *uint32 `json:"batch_size"`
	VisibilityTimeoutMS float64 `json:"visibility_timeout_ms"`
	ExtendLeases        *bool   `json:"extend_leases"`
	Concurrency         *uint32 `json:"concurrency"`
	Prefetch            *uint32 `json:"prefetch"`
	HandlerTimeoutMS    int64   `json:"handler_timeout_ms"`
	GraceMS             *int64  `json:"grace_ms"`
	Max                 int     `json:"max"`
	WaitMS              int64   `json:"wait_ms"`
	MaxMessages         uint32  `json:"max_messages"`

	lease
	Acks []lease `json:"acks"`

	MessageIDs       []string `json:"message_ids"`
	ExceptMessageIDs []string `json:"except_message_ids"`
	How              string   `json:"how"`
	Error            string   `json:"error"`
	RetryAfterMS     *int64   `json:"retry_after_ms"`
	ThrottleKey      string   `json:"throttle_key"`
	DeadLetter       bool     `json:"dead_letter"`
	MS               float64  `json:"ms"`

	Settings map[string]json.RawMessage `json:"settings"`
	Key      string                     `json:"key"`
	Value    string                     `json:"value"`
	Entries  map[string]string          `json:"entries"`

	KeepDeadLetters bool   `json:"keep_dead_letters"`
	Prefix          string `json:"prefix"`
	Unset           bool   `json:"unset"`
	Limit           uint32 `json:"limit"`
	DurationMS      int64  `json:"duration_ms"`

	Name        string     `json:"name"`
	ACL         []aclEntry `json:"acl"`
	ExpiresAtMS *int64     `json:"expires_at_ms"`
	Superadmin  bool       `json:"superadmin"`

	KeyID          string `json:"key_id"`
	FromPosition   uint64 `json:"from_position"`
	UntilPosition  uint64 `json:"until_position"`
	State          string `json:"state"`
	ExcludePayload bool   `json:"exclude_payload"`
	Readers        int    `json:"readers"`
	Where          string `json:"where"`

	Traceparent string   `json:"traceparent"`
	Tracestate  string   `json:"tracestate"`
	Then        *request `json:"then"`
}

type message struct {
	Queue          string            `json:"queue"`
	Headers        map[string]string `json:"headers"`
	Payload        []byte            `json:"payload"`
	FairnessKey    string            `json:"fairness_key"`
	Weight         uint32            `json:"weight"`
	ThrottleKeys   []string          `json:"throttle_keys"`
	ThrottleCost   uint32            `json:"throttle_cost"`
	DelayMS        int64             `json:"delay_ms"`
	DeliverAtMS    *int64            `json:"deliver_at_ms"`
	TTLMS          int64             `json:"ttl_ms"`
	IdempotencyKey string            `json:"idempotency_key"`
}

type lease struct {
	MessageID  string `json:"message_id"`
	LeaseToken string `json:"lease_token"`
}

type aclEntry struct {
	Permission fila.Permission `json:"permission"`
	Pattern    string          `json:"pattern"`
}

type tlsFiles struct {
	CAFile     string `json:"ca_file"`
	CertFile   string `json:"cert_file"`
	KeyFile    string `json:"key_file"`
	ServerName string `json:"server_name"`
}

type connecting struct {
	TimeoutMS        *int64 `json:"timeout_ms"`
	BackoffInitialMS int64  `json:"backoff_initial_ms"`
	BackoffMaximumMS int64  `json:"backoff_maximum_ms"`
}

type object map[string]any

// millis stops at the longest duration that Go has.
func millis(ms int64) time.Duration {
	const longest = int64(math.MaxInt64 / time.Millisecond)
	return time.Duration(max(-longest, min(ms, longest))) * time.Millisecond
}

// exactly is for what may be a fraction of a millisecond.
func exactly(ms float64) time.Duration {
	if whole := int64(ms); float64(whole) == ms {
		return millis(whole)
	}
	return time.Duration(ms * float64(time.Millisecond))
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func epochMS(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at.UnixMilli()
}

func (m message) toEnqueue() fila.EnqueueMessage {
	converted := fila.EnqueueMessage{
		Queue:          m.Queue,
		Headers:        m.Headers,
		Payload:        m.Payload,
		FairnessKey:    m.FairnessKey,
		Weight:         m.Weight,
		ThrottleKeys:   m.ThrottleKeys,
		ThrottleCost:   m.ThrottleCost,
		Delay:          millis(m.DelayMS),
		TTL:            millis(m.TTLMS),
		IdempotencyKey: m.IdempotencyKey,
	}
	if m.DeliverAtMS != nil {
		converted.DeliverAt = time.UnixMilli(*m.DeliverAtMS)
	}
	return converted
}

func delivered(messages []*fila.ConsumeMessage) []object {
	found := make([]object, len(messages))
	for i, m := range messages {
		found[i] = object{
			"id":                  m.ID,
			"queue":               m.Queue,
			"headers":             orEmpty(m.Headers),
			"payload":             append([]byte{}, m.Payload...),
			"fairness_key":        m.FairnessKey,
			"weight":              m.Weight,
			"throttle_keys":       append([]string{}, m.ThrottleKeys...),
			"attempt_count":       m.AttemptCount,
			"lease_token":         m.LeaseToken,
			"last_error":          m.LastError,
			"failures":            failures(m.Failures),
			"enqueued_at_ms":      epochMS(m.EnqueuedAt),
			"lease_expires_at_ms": epochMS(m.LeaseExpiresAt),
		}
	}
	return found
}

func failures(rows []fila.Failure) []object {
	found := make([]object, len(rows))
	for i, row := range rows {
		var cause any
		if row.Cause != "" {
			cause = row.Cause
		}
		found[i] = object{
			"failed_at_ms": epochMS(row.FailedAt), "cause": cause, "error": row.Error,
		}
	}
	return found
}

func orEmpty(headers map[string]string) map[string]string {
	if headers == nil {
		return map[string]string{}
	}
	return headers
}

var kinds = map[error]string{
	fila.ErrQueueNotFound:       "queue_not_found",
	fila.ErrMessageNotFound:     "message_not_found",
	fila.ErrLeaseExpired:        "lease_expired",
	fila.ErrQueueAlreadyExists:  "queue_already_exists",
	fila.ErrInvalidArgument:     "invalid_argument",
	fila.ErrInvalidScript:       "invalid_script",
	fila.ErrNotADeadLetterQueue: "not_a_dead_letter_queue",
	fila.ErrParentQueueNotFound: "parent_queue_not_found",
	fila.ErrMessageTooLarge:     "message_too_large",
	fila.ErrOverloaded:          "overloaded",
	fila.ErrQueueFull:           "queue_full",
	fila.ErrDiskFull:            "disk_full",
	fila.ErrShuttingDown:        "shutting_down",
	fila.ErrUnauthenticated:     "unauthenticated",
	fila.ErrPermissionDenied:    "permission_denied",
	fila.ErrStorageFailed:       "storage_failed",
	fila.ErrHookFailed:          "hook_failed",
	fila.ErrConfigNotFound:      "config_not_found",
	fila.ErrMessageLeased:       "message_leased",
	fila.ErrAPIKeyNotFound:      "api_key_not_found",
	fila.ErrInternal:            "internal",
	fila.ErrResourceExhausted:   "resource_exhausted",
	fila.ErrUnavailable:         "unavailable",
	fila.ErrDeadlineExceeded:    "deadline_exceeded",
	fila.ErrCanceled:            "cancelled",
	fila.ErrUnimplemented:       "unimplemented",
	fila.ErrClientClosed:        "client_closed",
}

func describe(failure *fila.Error) object {
	return object{
		"kind":      kinds[failure.Kind],
		"message":   failure.Error(),
		"retryable": failure.Retryable,

		"code":       statusName(failure),
		"reason":     orNull(failure.Reason),
		"queue":      orNull(failure.Queue),
		"message_id": orNull(failure.MessageID),
	}
}

var innerCapital = regexp.MustCompile(`([a-z])([A-Z])`)

// statusName is null where no status led to the error.
func statusName(failure *fila.Error) any {
	switch {
	case errors.Is(failure, fila.ErrClientClosed):
		return nil
	case failure.Code == codes.Canceled:
		return "CANCELLED" // As gRPC writes it, everywhere but in Go.
	}
	return strings.ToUpper(innerCapital.ReplaceAllString(failure.Code.String(), "${1}_$2"))
}

// as reads a setting's JSON value and makes a setting of it.
func as[T any](
	setting func(T) fila.QueueSetting,
) func(json.RawMessage) (fila.QueueSetting, error) {
	return func(raw json.RawMessage) (fila.QueueSetting, error) {
		var value T
		err := json.Unmarshal(raw, &value)
		return setting(value), err
	}
}

func asTime(
	setting func(time.Duration) fila.QueueSetting,
) func(json.RawMessage) (fila.QueueSetting, error) {
	return as(func(ms int64) fila.QueueSetting { return setting(millis(ms)) })
}

var settings = map[string]func(json.RawMessage) (fila.QueueSetting, error){
	"on_enqueue_script":       as(fila.OnEnqueueScript),
	"on_failure_script":       as(fila.OnFailureScript),
	"visibility_timeout_ms":   asTime(fila.VisibilityTimeout),
	"max_attempts":            as(fila.MaxAttempts),
	"retry_delay_ms":          asTime(fila.RetryDelay),
	"retry_delay_max_ms":      asTime(fila.RetryDelayMax),
	"default_ttl_ms":          asTime(fila.DefaultTTL),
	"idempotency_window_ms":   asTime(fila.IdempotencyWindow),
	"max_messages":            as(fila.MaxMessages),
	"on_hook_error":           as(fila.OnHookError),
	"hook_timeout_ms":         asTime(fila.HookTimeout),
	"hook_memory_limit_bytes": as(fila.HookMemoryLimitBytes),
	"quantum":                 as(fila.Quantum),
}

func (r *request) queueSettings() ([]fila.QueueSetting, error) {
	var chosen []fila.QueueSetting
	for name, raw := range r.Settings {
		read, isKnown := settings[name]
		if !isKnown {
			return nil, fmt.Errorf("queue setting %q is unknown to the driver", name)
		}
		if string(raw) == "null" {
			continue
		}
		value, err := read(raw)
		if err != nil {
			return nil, fmt.Errorf("queue setting %q: %w", name, err)
		}
		chosen = append(chosen, value)
	}
	return chosen, nil
}
