// SPDX-License-Identifier: AGPL-3.0-only
//! The wire's side of the scripted broker: it records calls, runs their scripts, and sends what
//! those answer.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use prost::Message;
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, ServerStreamingService, StreamingService};
use tonic::{Request, Response, Status, Streaming};

use super::{BoxFuture, Inner, Out, Requests, Seen};
use crate::proto;
use crate::proto::pipeline_request::Call;
use crate::raw::Raw;

#[derive(Clone)]
pub(super) struct Scripted(pub(super) Arc<Inner>);

impl Service<http::Request<Body>> for Scripted {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let method = path.rsplit('/').next().unwrap_or_default().to_owned();
        let handler = Handler { inner: Arc::clone(&self.0), method };
        Box::pin(async move {
            let mut grpc = Grpc::new(Raw).max_decoding_message_size(64 << 20);
            Ok(match handler.method.as_str() {
                "Pipeline" => grpc.streaming(handler, request).await,
                _ => grpc.server_streaming(handler, request).await,
            })
        })
    }
}

struct Handler {
    inner: Arc<Inner>,
    method: String,
}

impl Handler {
    fn seen<T>(&self, request: &Request<T>, body: Vec<u8>) -> Seen {
        let text = |value: &tonic::metadata::MetadataValue<_>| {
            value.to_str().unwrap_or_default().to_owned()
        };
        let metadata: HashMap<String, String> = request
            .metadata()
            .iter()
            .filter_map(|entry| match entry {
                tonic::metadata::KeyAndValueRef::Ascii(key, value) => {
                    Some((key.to_string(), text(value)))
                }
                tonic::metadata::KeyAndValueRef::Binary(..) => None,
            })
            .collect();
        let timeout = metadata.get("grpc-timeout").map(|text| parsed_timeout(text));
        let method = self.method.clone();
        Seen { method, metadata, timeout, is_piped: false, body }
    }
}

impl ServerStreamingService<Vec<u8>> for Handler {
    type Response = Vec<u8>;
    type ResponseStream = Answers;
    type Future = BoxFuture<Result<Response<Answers>, Status>>;

    fn call(&mut self, mut request: Request<Vec<u8>>) -> Self::Future {
        let body = std::mem::take(request.get_mut());
        let seen = self.seen(&request, body);
        self.inner.seen.lock().expect("a lock").push(seen.clone());
        let script = self.inner.scripts.lock().expect("a lock").get(&self.method).cloned();
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let script = script.ok_or_else(|| Status::unimplemented("not scripted"))?;
            let (out, answers) = mpsc::unbounded_channel();
            tokio::spawn(script(seen, Out(out)));
            begun(inner, answers).await
        })
    }
}

impl StreamingService<Vec<u8>> for Handler {
    type Response = Vec<u8>;
    type ResponseStream = Answers;
    type Future = BoxFuture<Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<Streaming<Vec<u8>>>) -> Self::Future {
        let seen = self.seen(&request, Vec::new());
        self.inner.pipelines.lock().expect("a lock").push(seen.clone());
        let script = self.inner.pipeline.lock().expect("a lock").clone();
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let (out, answers) = mpsc::unbounded_channel();
            let requests = Requests(request.into_inner());
            match script {
                Some(script) => tokio::spawn(script(requests, Out(out))),
                None => tokio::spawn(dispatched(Arc::clone(&inner), seen, requests, Out(out))),
            };
            begun(inner, answers).await
        })
    }
}

/// As the real one: nothing is sent before the first frame.
async fn begun(
    inner: Arc<Inner>,
    mut answers: mpsc::UnboundedReceiver<Result<Vec<u8>, Status>>,
) -> Result<Response<Answers>, Status> {
    match answers.recv().await {
        Some(Err(status)) => Err(status),
        first => Ok(Response::new(Answers { first, answers, inner })),
    }
}

/// Answers what comes through a pipeline as it would answer the calls: they overlap, and answers
/// leave in order. What a script fails with ends the stream.
async fn dispatched(inner: Arc<Inner>, stream: Seen, mut requests: Requests, out: Out) {
    let (calls, mut under_way) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let (number, method, body) = called(request);
            let metadata = stream.metadata.clone();
            let method = method.to_owned();
            let seen = Seen { method, metadata, timeout: None, is_piped: true, body };
            inner.seen.lock().expect("a lock").push(seen.clone());
            let script = inner.scripts.lock().expect("a lock").get(&seen.method).cloned();
            let (out, answer) = mpsc::unbounded_channel();
            if let Some(script) = script {
                tokio::spawn(script(seen, Out(out)));
            }
            let _ = calls.send((number, answer));
        }
    });
    while let Some((number, mut answer)) = under_way.recv().await {
        match answer.recv().await {
            Some(Ok(body)) => {
                let mut piped = Vec::new();
                prost::encoding::bytes::encode(number, &body, &mut piped);
                let _ = out.0.send(Ok(piped));
            }
            Some(Err(status)) => return out.fail(status),
            None => return out.fail(Status::internal("not scripted")),
        }
    }
}

/// The call that a request of a pipeline stands for, with its number in the answer.
fn called(request: proto::PipelineRequest) -> (u32, &'static str, Vec<u8>) {
    match request.call.expect("a call") {
        Call::Enqueue(call) => (1, "EnqueueBatch", call.encode_to_vec()),
        Call::Ack(call) => (2, "AckBatch", call.encode_to_vec()),
        Call::Nack(call) => (3, "NackBatch", call.encode_to_vec()),
        Call::Extend(call) => (4, "ExtendLease", call.encode_to_vec()),
        Call::Settle(call) => (5, "SettleGrants", call.encode_to_vec()),
    }
}

struct Answers {
    inner: Arc<Inner>,
    first: Option<Result<Vec<u8>, Status>>,
    answers: mpsc::UnboundedReceiver<Result<Vec<u8>, Status>>,
}

impl Stream for Answers {
    type Item = Result<Vec<u8>, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let answer = match self.first.take() {
            Some(first) => Some(first),
            None => ready!(self.answers.poll_recv(context)),
        };
        self.inner.taken.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(answer)
    }
}

fn parsed_timeout(text: &str) -> Duration {
    let (number, unit) = text.split_at(text.len() - 1);
    let number: u64 = number.parse().expect("a number");
    match unit {
        "n" => Duration::from_nanos(number),
        "u" => Duration::from_micros(number),
        "m" => Duration::from_millis(number),
        "S" => Duration::from_secs(number),
        "M" => Duration::from_secs(number * 60),
        _ => Duration::from_secs(number * 3600),
    }
}
