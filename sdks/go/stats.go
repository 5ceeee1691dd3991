// SPDX-License-Identifier: AGPL-3.0-only

// What a broker reports about queues, messages and waits, as plain values. Fields have the names of
// the contract, where each is described.

package fila

import (
	"time"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// MessageState is where a message is in its life.
type MessageState string

// The states.
const (
	StatePending MessageState = "pending"
	StateDelayed MessageState = "delayed"
	StateLeased  MessageState = "leased"
)

// WaitKind is a kind of waiting.
type WaitKind string

// The kinds. WaitHookBypassed is not a wait: the message runs under the default key.
const (
	WaitThrottled    WaitKind = "throttled"
	WaitConcurrency  WaitKind = "concurrency"
	WaitTurn         WaitKind = "turn"
	WaitDelayed      WaitKind = "delayed"
	WaitPaused       WaitKind = "paused"
	WaitNoCredit     WaitKind = "no_credit"
	WaitLeased       WaitKind = "leased"
	WaitBackpressure WaitKind = "backpressure"
	WaitHookBypassed WaitKind = "hook_bypassed"
)

// QueueInfo is one row of the list of queues.
type QueueInfo struct {
	Name            string
	Depth           uint64
	InFlight        uint32
	ActiveConsumers uint32
	// LeaderNodeID is the broker that leads the queue; 0 outside a cluster.
	LeaderNodeID uint64
	IsPaused     bool
	DeadLetterOf string
	Delayed      uint64
}

// DeletedQueue is how much went with a queue.
type DeletedQueue struct {
	Messages    uint64
	DeadLetters uint64
}

// QueueStats is counts, scheduling state and settings of one queue.
type QueueStats struct {
	Depth              uint64
	InFlight           uint64
	ActiveFairnessKeys uint64
	ActiveConsumers    uint32
	Quantum            uint32
	PerKey             []FairnessKeyStats
	PerThrottle        []ThrottleKeyStats
	// LeaderNodeID and ReplicationCount are 0 outside a cluster.
	LeaderNodeID     uint64
	ReplicationCount uint32
	Counters         QueueCounters
	Config           QueueConfig
	OldestPendingAge time.Duration
	DeadLetterOf     string
	ConsumerCredit   uint64
	Throttled        uint64
	// Hooks is nil when the queue has none.
	Hooks    *HookStats
	Delayed  uint64
	IsPaused bool
	// RoundKey is the fairness key whose turn it is; empty when none takes part in the round.
	RoundKey string
}

// QueueCounters is what happened in a queue since the broker started.
type QueueCounters struct {
	Enqueued     uint64
	Delivered    uint64
	Acked        uint64
	Nacked       uint64
	Expired      uint64
	DeadLettered uint64
	TimedOut     uint64
	Duplicates   uint64
}

// HookStats is how a queue's hooks are doing.
type HookStats struct {
	Calls         uint64
	Failures      uint64
	Bypassed      uint64
	IsCircuitOpen bool
	LastError     string
}

// FairnessKeyStats is one fairness key of a queue.
type FairnessKeyStats struct {
	Key            string
	PendingCount   uint64
	CurrentDeficit int64
	Weight         uint32
	Delivered      uint64
	Throttled      uint64
	IsPaused       bool
	// RoundPosition is its place in the round, 0 when it is its turn; nil when it takes no part.
	RoundPosition *uint32
}

// PeekPage is some messages, oldest first. NextPosition is 0 when nothing follows.
type PeekPage struct {
	Messages     []PeekedMessage
	NextPosition uint64
	// EndPosition is the one after the newest message: a cutoff for a consistent scan.
	EndPosition uint64
}

// PeekedMessage is one message as it lies in its queue.
type PeekedMessage struct {
	Message  Message
	State    MessageState
	Position uint64
}

// Explanation is why a message or a fairness key waits; the reason that decides comes first.
type Explanation struct {
	// Summary is one sentence for people.
	Summary string
	Reasons []WaitReason
	// EstimatedAt is when the next delivery is expected; zero when that cannot be known.
	EstimatedAt  time.Time
	FairnessKey  string
	PendingCount uint64
	// Ahead is the deliveries expected before the one in question.
	Ahead uint64
	// State is the message's; empty when a key was asked about.
	State MessageState
	// Failures are the message's last five, oldest first.
	Failures []Failure
	// UnsetThrottleKeys are those that it carries and that nobody configured.
	UnsetThrottleKeys []string
}

// WaitReason is one reason to wait.
type WaitReason struct {
	Kind        WaitKind
	Detail      string
	ThrottleKey string
	// Until is when this reason ends; zero when that cannot be known.
	Until time.Time
	Count uint64
	Limit uint64
}

func each[P, R any](rows []P, read func(P) R) []R {
	found := make([]R, len(rows))
	for i, row := range rows {
		found[i] = read(row)
	}
	return found
}

func readQueueInfo(raw *filapb.QueueInfo) QueueInfo {
	return QueueInfo{
		Name:            raw.GetName(),
		Depth:           raw.GetDepth(),
		InFlight:        raw.GetInFlight(),
		ActiveConsumers: raw.GetActiveConsumers(),
		LeaderNodeID:    raw.GetLeaderNodeId(),
		IsPaused:        raw.GetPaused(),
		DeadLetterOf:    raw.GetDeadLetterOf(),
		Delayed:         raw.GetDelayed(),
	}
}

func readStats(raw *filapb.GetStatsResponse) QueueStats {
	return QueueStats{
		Depth:              raw.GetDepth(),
		InFlight:           raw.GetInFlight(),
		ActiveFairnessKeys: raw.GetActiveFairnessKeys(),
		ActiveConsumers:    raw.GetActiveConsumers(),
		Quantum:            raw.GetQuantum(),
		PerKey:             each(raw.GetPerKeyStats(), readKeyStats),
		PerThrottle:        each(raw.GetPerThrottleStats(), readThrottleStats),
		LeaderNodeID:       raw.GetLeaderNodeId(),
		ReplicationCount:   raw.GetReplicationCount(),
		Counters:           readCounters(raw.GetCounters()),
		Config:             readConfig(raw.GetConfig()),
		OldestPendingAge:   duration(raw.GetOldestPendingAgeMs()),
		DeadLetterOf:       raw.GetDeadLetterOf(),
		ConsumerCredit:     raw.GetConsumerCredit(),
		Throttled:          raw.GetThrottled(),
		Hooks:              readHooks(raw.GetHooks()),
		Delayed:            raw.GetDelayed(),
		IsPaused:           raw.GetPaused(),
		RoundKey:           raw.GetRoundKey(),
	}
}

func readCounters(raw *filapb.QueueCounters) QueueCounters {
	return QueueCounters{
		Enqueued:     raw.GetEnqueued(),
		Delivered:    raw.GetDelivered(),
		Acked:        raw.GetAcked(),
		Nacked:       raw.GetNacked(),
		Expired:      raw.GetExpired(),
		DeadLettered: raw.GetDeadLettered(),
		TimedOut:     raw.GetTimedOut(),
		Duplicates:   raw.GetDuplicates(),
	}
}

func readHooks(raw *filapb.HookStats) *HookStats {
	if raw == nil {
		return nil
	}
	return &HookStats{
		Calls:         raw.GetCalls(),
		Failures:      raw.GetFailures(),
		Bypassed:      raw.GetBypassed(),
		IsCircuitOpen: raw.GetCircuitOpen(),
		LastError:     raw.GetLastError(),
	}
}

func readKeyStats(raw *filapb.PerFairnessKeyStats) FairnessKeyStats {
	return FairnessKeyStats{
		Key:            raw.GetKey(),
		PendingCount:   raw.GetPendingCount(),
		CurrentDeficit: raw.GetCurrentDeficit(),
		Weight:         raw.GetWeight(),
		Delivered:      raw.GetDelivered(),
		Throttled:      raw.GetThrottled(),
		IsPaused:       raw.GetPaused(),
		RoundPosition:  raw.RoundPosition,
	}
}

func readPeeked(raw *filapb.PeekedMessage) PeekedMessage {
	return PeekedMessage{
		Message:  readMessage(raw.GetMessage()),
		State:    readState(raw.GetState()),
		Position: raw.GetPosition(),
	}
}

func readState(raw filapb.MessageState) MessageState {
	return MessageState(enumValue("MESSAGE_STATE_", filapb.MessageState_name, int32(raw)))
}

func readExplanation(raw *filapb.ExplainResponse) Explanation {
	return Explanation{
		Summary:           raw.GetSummary(),
		Reasons:           each(raw.GetReasons(), readWaitReason),
		EstimatedAt:       moment(raw.GetEstimatedAt()),
		FairnessKey:       raw.GetFairnessKey(),
		PendingCount:      raw.GetPendingCount(),
		Ahead:             raw.GetAhead(),
		State:             readState(raw.GetState()),
		Failures:          each(raw.GetFailures(), readFailure),
		UnsetThrottleKeys: raw.GetUnsetThrottleKeys(),
	}
}

func readWaitReason(raw *filapb.WaitReason) WaitReason {
	return WaitReason{
		Kind:        WaitKind(enumValue("WAIT_KIND_", filapb.WaitKind_name, int32(raw.GetKind()))),
		Detail:      raw.GetDetail(),
		ThrottleKey: raw.GetThrottleKey(),
		Until:       moment(raw.GetUntil()),
		Count:       raw.GetCount(),
		Limit:       raw.GetLimit(),
	}
}
