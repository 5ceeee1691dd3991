// SPDX-License-Identifier: AGPL-3.0-only
//! Every reason and every status becomes the kind that the contract gives it.

use std::collections::HashSet;

use fila::{Client, EnqueueMessage, ErrorKind};
use tonic::Code;

use crate::broker::Broker;
use crate::proto;

const REASONS: [(proto::ErrorReason, ErrorKind, Code); 21] = {
    use ErrorKind as Kind;
    use proto::ErrorReason as Reason;
    [
        (Reason::QueueNotFound, Kind::QueueNotFound, Code::NotFound),
        (Reason::MessageNotFound, Kind::MessageNotFound, Code::NotFound),
        (Reason::LeaseExpired, Kind::LeaseExpired, Code::FailedPrecondition),
        (Reason::QueueAlreadyExists, Kind::QueueAlreadyExists, Code::AlreadyExists),
        (Reason::InvalidArgument, Kind::InvalidArgument, Code::InvalidArgument),
        (Reason::InvalidScript, Kind::InvalidScript, Code::InvalidArgument),
        (Reason::NotADeadLetterQueue, Kind::NotADeadLetterQueue, Code::InvalidArgument),
        (Reason::ParentQueueNotFound, Kind::ParentQueueNotFound, Code::FailedPrecondition),
        (Reason::MessageTooLarge, Kind::MessageTooLarge, Code::InvalidArgument),
        (Reason::Overloaded, Kind::Overloaded, Code::ResourceExhausted),
        (Reason::QueueFull, Kind::QueueFull, Code::ResourceExhausted),
        (Reason::DiskFull, Kind::DiskFull, Code::ResourceExhausted),
        (Reason::ShuttingDown, Kind::ShuttingDown, Code::Unavailable),
        (Reason::Unauthenticated, Kind::Unauthenticated, Code::Unauthenticated),
        (Reason::PermissionDenied, Kind::PermissionDenied, Code::PermissionDenied),
        (Reason::StorageFailed, Kind::StorageFailed, Code::Internal),
        (Reason::HookFailed, Kind::HookFailed, Code::FailedPrecondition),
        (Reason::ConfigNotFound, Kind::ConfigNotFound, Code::NotFound),
        (Reason::MessageLeased, Kind::MessageLeased, Code::FailedPrecondition),
        (Reason::ApiKeyNotFound, Kind::ApiKeyNotFound, Code::NotFound),
        (Reason::Internal, Kind::Internal, Code::Internal),
    ]
};

const STATUSES: [(Code, ErrorKind, &str); 16] = [
    (Code::Cancelled, ErrorKind::Cancelled, "CANCELLED"),
    (Code::Unknown, ErrorKind::Internal, "UNKNOWN"),
    (Code::InvalidArgument, ErrorKind::InvalidArgument, "INVALID_ARGUMENT"),
    (Code::DeadlineExceeded, ErrorKind::DeadlineExceeded, "DEADLINE_EXCEEDED"),
    (Code::NotFound, ErrorKind::QueueNotFound, "NOT_FOUND"),
    (Code::AlreadyExists, ErrorKind::QueueAlreadyExists, "ALREADY_EXISTS"),
    (Code::PermissionDenied, ErrorKind::PermissionDenied, "PERMISSION_DENIED"),
    (Code::ResourceExhausted, ErrorKind::ResourceExhausted, "RESOURCE_EXHAUSTED"),
    (Code::FailedPrecondition, ErrorKind::Internal, "FAILED_PRECONDITION"),
    (Code::Aborted, ErrorKind::Internal, "ABORTED"),
    (Code::OutOfRange, ErrorKind::Internal, "OUT_OF_RANGE"),
    (Code::Unimplemented, ErrorKind::Unimplemented, "UNIMPLEMENTED"),
    (Code::Internal, ErrorKind::Internal, "INTERNAL"),
    (Code::Unavailable, ErrorKind::Unavailable, "UNAVAILABLE"),
    (Code::DataLoss, ErrorKind::Internal, "DATA_LOSS"),
    (Code::Unauthenticated, ErrorKind::Unauthenticated, "UNAUTHENTICATED"),
];

fn name(reason: proto::ErrorReason) -> &'static str {
    reason.as_str_name().trim_start_matches("ERROR_REASON_")
}

#[test]
fn every_reason_of_the_contract_is_tested_here() {
    let numbers: HashSet<i32> = REASONS.iter().map(|(reason, ..)| *reason as i32).collect();
    for number in 1..=100 {
        let is_known = proto::ErrorReason::try_from(number).is_ok();
        assert_eq!(numbers.contains(&number), is_known, "reason {number}");
    }
}

#[tokio::test]
async fn the_reason_of_a_call_chooses_the_kind() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    for (reason, kind, code) in REASONS {
        broker.refuse("DeleteQueue", code, "what happened", Some(name(reason)));
        let error = client.delete_queue("orders").await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert_eq!(error.reason(), Some(name(reason)));
        assert_eq!((error.message(), error.queue()), ("what happened", Some("orders")));
    }
}

#[tokio::test]
async fn the_reason_wins_over_the_status() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    broker.refuse("DeleteQueue", Code::Aborted, "", Some("QUEUE_FULL"));
    let error = client.delete_queue("orders").await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::QueueFull, Some("ABORTED")));
}

#[tokio::test]
async fn the_reason_of_an_item_chooses_the_kind() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    for (reason, kind, code) in REASONS {
        let error = proto::ItemError { reason: reason.into(), message: "what happened".to_owned() };
        let results = vec![proto::ItemResult { error: Some(error) }];
        broker.answer("AckBatch", proto::AckBatchResponse { results });
        let error = client.ack("orders", "m-1", None).await.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (kind, Some(name(reason))));
        assert_eq!((error.queue(), error.message_id()), (Some("orders"), Some("m-1")));
        let status = STATUSES.iter().find(|(known, ..)| *known == code).unwrap().2;
        assert_eq!(error.code(), Some(status));
    }
}

#[tokio::test]
async fn a_status_without_a_reason_chooses_the_kind() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    for (code, kind, status) in STATUSES {
        broker.refuse("DeleteQueue", code, "what happened", None);
        let error = client.delete_queue("orders").await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (kind, Some(status)));
        assert_eq!((error.reason(), error.message()), (None, "what happened"));
    }
}

#[tokio::test]
async fn the_status_of_a_stream_is_handed_out_unless_it_is_passing() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    let passing = [Code::Unavailable, Code::Cancelled];
    for (code, kind, _) in STATUSES.into_iter().filter(|(code, ..)| !passing.contains(code)) {
        broker.refuse("Consume", code, "what happened", None);
        let consumer = client.consume("orders").await.unwrap();
        let error = consumer.next().await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.queue()), (kind, Some("orders")));
        assert!(consumer.next().await.is_none());
    }
}

#[tokio::test]
async fn not_found_without_a_reason_is_about_what_the_call_named() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    for method in ["CancelMessage", "DeleteQueue", "GetConfig"] {
        broker.refuse(method, Code::NotFound, "", None);
    }
    let error = client.cancel("orders", "m-1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MessageNotFound);
    assert_eq!(client.delete_queue("a").await.unwrap_err().kind(), ErrorKind::QueueNotFound);
    assert_eq!(client.get_config("a").await.unwrap_err().kind(), ErrorKind::Internal);
}

#[tokio::test]
async fn a_reason_that_is_newer_than_the_client_falls_back() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    broker.refuse("DeleteQueue", Code::ResourceExhausted, "too warm", Some("TOO_WARM"));
    let error = client.delete_queue("orders").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    assert_eq!(error.reason(), Some("TOO_WARM"));
    let error = proto::ItemError { reason: 999, message: "too warm".to_owned() };
    let results = vec![proto::ItemResult { error: Some(error) }];
    broker.answer("AckBatch", proto::AckBatchResponse { results });
    let error = client.ack("orders", "m-1", None).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Internal, Some("999")));
}

#[tokio::test]
async fn text_keeps_whitespace_and_characters_beyond_the_bmp() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    let text = "  tab\t, percent % and \u{1F980} ";
    broker.refuse("DeleteQueue", Code::Internal, text, None);
    assert_eq!(client.delete_queue("orders").await.unwrap_err().message(), text);
}

#[tokio::test]
async fn an_error_without_text_says_what_its_kind_means() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    broker.refuse("DeleteQueue", Code::NotFound, "", Some("QUEUE_NOT_FOUND"));
    let error = client.delete_queue("orders").await.unwrap_err();
    assert_eq!(error.to_string(), "the queue does not exist");
}

#[tokio::test]
async fn an_error_keeps_its_cause() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    broker.refuse("EnqueueBatch", Code::Internal, "boom", None);
    let error = client.enqueue(EnqueueMessage::new("orders", "")).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap();
    assert!(cause.to_string().contains("boom"), "{cause}");
}

#[tokio::test]
async fn what_can_be_tried_again() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    let expected = [
        ErrorKind::Overloaded,
        ErrorKind::QueueFull,
        ErrorKind::DiskFull,
        ErrorKind::ShuttingDown,
        ErrorKind::ResourceExhausted,
        ErrorKind::Unavailable,
        ErrorKind::DeadlineExceeded,
    ];
    let reasons = REASONS.iter().map(|(reason, kind, code)| (*code, *kind, Some(name(*reason))));
    let statuses = STATUSES.iter().map(|(code, kind, _)| (*code, *kind, None));
    for (code, kind, reason) in reasons.chain(statuses) {
        broker.refuse("DeleteQueue", code, "", reason);
        let error = client.delete_queue("orders").await.unwrap_err();
        assert_eq!(error.is_retryable(), expected.contains(&kind), "{kind:?}");
    }
}
