// SPDX-License-Identifier: AGPL-3.0-only
//! A broker that does what a test tells it: real gRPC over loopback, answers from a script.
//!
//! It records what arrived (method, request, metadata, time left), so that tests can look at the
//! wire and not at the client's inside. It knows methods by name and requests as bytes, so one
//! handler serves the whole contract. Its runtime is its own, so that stopping it is as sudden as a
//! crash.

mod service;

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use fila::Client;
use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tonic::metadata::MetadataMap;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Code, Status, Streaming};

use self::service::Scripted;
use crate::proto;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Script = Arc<dyn Fn(Seen, Out) -> BoxFuture<()> + Send + Sync>;
type PipelineScript = Arc<dyn Fn(Requests, Out) -> BoxFuture<()> + Send + Sync>;

/// What a machine that is busy with other work may need; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One call as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub metadata: HashMap<String, String>,
    pub timeout: Option<Duration>,
    /// Whether it came through a pipeline.
    pub is_piped: bool,
    body: Vec<u8>,
}

impl Seen {
    pub fn request<T: Message + Default>(&self) -> T {
        T::decode(self.body.as_slice()).expect("the request is of another type")
    }
}

/// Where a script puts its answers.
#[derive(Clone)]
pub struct Out(mpsc::UnboundedSender<Result<Vec<u8>, Status>>);

impl Out {
    /// Whether there is nobody left to answer does not concern a script.
    pub fn send(&self, answer: &impl Message) {
        let _ = self.0.send(Ok(answer.encode_to_vec()));
    }

    pub fn fail(&self, status: Status) {
        let _ = self.0.send(Err(status));
    }

    /// Keeps a stream open until its client ends it.
    pub async fn idle(&self) {
        self.0.closed().await;
    }
}

/// What comes through a pipeline.
pub struct Requests(Streaming<Vec<u8>>);

impl Requests {
    /// None when the client has half-closed the stream, or left.
    pub async fn next(&mut self) -> Option<proto::PipelineRequest> {
        let body = self.0.message().await.ok()??;
        Some(proto::PipelineRequest::decode(body.as_slice()).expect("a request of a pipeline"))
    }
}

#[derive(Default)]
struct Inner {
    seen: Mutex<Vec<Seen>>,
    pipelines: Mutex<Vec<Seen>>,
    taken: AtomicUsize,
    scripts: Mutex<HashMap<String, Script>>,
    pipeline: Mutex<Option<PipelineScript>>,
}

pub struct Broker {
    pub port: u16,
    inner: Arc<Inner>,
    runtime: Option<Runtime>,
}

impl Broker {
    /// Answers enqueues, acks and nacks with success, and other calls as scripted.
    pub fn start() -> Self {
        Self::on_port(0, |_| {})
    }

    /// With scripts from the start: a client may be waiting for its port.
    pub fn on_port(port: u16, script: impl FnOnce(&Self)) -> Self {
        Self::serving(port, Server::builder(), script)
    }

    pub fn with_tls(is_mutual: bool) -> Self {
        Self::with_tls_on(0, is_mutual)
    }

    pub fn with_tls_on(port: u16, is_mutual: bool) -> Self {
        let pair = Identity::from_pem(cert("server.pem"), cert("server.key"));
        let mut tls = ServerTlsConfig::new().identity(pair);
        if is_mutual {
            tls = tls.client_ca_root(Certificate::from_pem(cert("ca.pem")));
        }
        let server = Server::builder().tls_config(tls).expect("good certificates");
        Self::serving(port, server, |_| {})
    }

    fn serving(port: u16, server: Server, script: impl FnOnce(&Self)) -> Self {
        let listener = bind(port);
        let port = listener.local_addr().expect("an address").port();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let handle = runtime.handle().clone();
        let broker = Self { port, inner: Arc::default(), runtime: Some(runtime) };
        broker.on("EnqueueBatch", |seen, out| async move { out.send(&stored(&seen)) });
        for method in ["AckBatch", "NackBatch"] {
            broker.on(method, |seen, out| async move { out.send(&settled(&seen)) });
        }
        script(&broker);
        let scripted = Scripted(Arc::clone(&broker.inner));
        handle.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            server.serve_with_incoming(scripted, incoming).await
        });
        broker
    }

    pub fn target(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn on<F, Fut>(&self, method: &str, script: F)
    where
        F: Fn(Seen, Out) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let script: Script = Arc::new(move |seen, out| Box::pin(script(seen, out)));
        self.inner.scripts.lock().expect("a lock").insert(method.to_owned(), script);
    }

    /// For what a script per call cannot say.
    pub fn on_pipeline<F, Fut>(&self, script: F)
    where
        F: Fn(Requests, Out) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let script: PipelineScript = Arc::new(move |requests, out| Box::pin(script(requests, out)));
        *self.inner.pipeline.lock().expect("a lock") = Some(script);
    }

    /// A broker of before there were pipelines.
    pub fn without_pipelines(self) -> Self {
        self.on_pipeline(|_, out| async move { out.fail(Status::unimplemented("no such call")) });
        self
    }

    pub fn answer(&self, method: &str, answer: impl Message + Clone + 'static) {
        self.on(method, move |_, out| {
            let answer = answer.clone();
            async move { out.send(&answer) }
        });
    }

    pub fn refuse(&self, method: &str, code: Code, text: &str, reason: Option<&'static str>) {
        let text = text.to_owned();
        self.on(method, move |_, out| {
            let status = refusal(code, &text, reason);
            async move { out.fail(status) }
        });
    }

    /// Pipelines that were opened. What came through them is among the calls.
    pub fn pipelines(&self) -> Vec<Seen> {
        self.inner.pipelines.lock().expect("a lock").clone()
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.inner.seen.lock().expect("a lock").clone()
    }

    pub fn calls(&self, method: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|call| call.method == method).collect()
    }

    /// Answers that left for the client so far: flow control holds back the rest.
    pub fn taken(&self) -> usize {
        self.inner.taken.load(Ordering::SeqCst)
    }

    /// Messages that the client gave back, without an attempt being counted.
    pub fn released(&self) -> Vec<String> {
        let calls = self.calls("NackBatch");
        let nacks = calls.iter().flat_map(|call| call.request::<proto::NackBatchRequest>().nacks);
        nacks
            .map(|nack| {
                assert_eq!(nack.retry_after_ms, Some(0));
                assert_eq!(nack.lease_token, format!("token-of-{}", nack.message_id));
                nack.message_id
            })
            .collect()
    }

    /// Waits until so many answers are with the client: when a call is answered, what the broker
    /// sent before it on the same connection has arrived.
    pub async fn arrived(&self, client: &Client, answers: usize) {
        self.until(|broker| broker.taken() == answers).await;
        client.get_config("unknown").await.unwrap_err();
    }

    pub async fn until(&self, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self) {
            assert!(Instant::now() < deadline, "it did not happen in time: {:?}", self.seen());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Elsewhere, because a runtime cannot wait for another one. When it is over, the port
            // is free and nobody answers.
            let ending = std::thread::spawn(move || runtime.shutdown_timeout(PATIENCE));
            ending.join().expect("the broker ends");
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
    }
}

fn bind(port: u16) -> TcpListener {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let deadline = Instant::now() + PATIENCE;
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => {
                listener.set_nonblocking(true).expect("a socket");
                return listener;
            }
            // A broker that was stopped just now may still hold it.
            Err(error) => assert!(Instant::now() < deadline, "cannot bind {address}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A port where nobody listens, for brokers that come later or again. No other test is given it,
/// and no connection: of the ephemeral range, whoever binds port 0 could take it meanwhile, and a
/// client that tries to connect there may find another test's broker, or itself.
pub fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU16> =
        LazyLock::new(|| AtomicU16::new((RandomState::new().hash_one(0) % 12_000) as u16));
    loop {
        let port = 20_000 + NEXT.fetch_add(1, Ordering::SeqCst) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

pub fn cert_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/certs").join(name)
}

fn cert(name: &str) -> Vec<u8> {
    std::fs::read(cert_path(name)).expect("a certificate")
}

/// The id of a message is its payload, so that tests can tell whose it is.
pub fn stored(seen: &Seen) -> proto::EnqueueBatchResponse {
    let messages = seen.request::<proto::EnqueueBatchRequest>().messages;
    let results = messages.into_iter().map(|message| proto::EnqueueResult {
        message_id: format!("id-{}", String::from_utf8_lossy(&message.payload)),
        ..Default::default()
    });
    proto::EnqueueBatchResponse { results: results.collect() }
}

/// Both batch responses look the same on the wire, and both requests hold one field.
pub fn settled(seen: &Seen) -> proto::AckBatchResponse {
    let count = seen.request::<proto::AckBatchRequest>().acks.len();
    proto::AckBatchResponse { results: vec![proto::ItemResult::default(); count] }
}

pub fn refusal(code: Code, text: &str, reason: Option<&'static str>) -> Status {
    let mut metadata = MetadataMap::new();
    if let Some(reason) = reason {
        metadata.insert("fila-reason", reason.parse().expect("ascii"));
    }
    Status::with_metadata(code, text, metadata)
}

/// A delivered message as the broker would send it.
pub fn message(id: &str) -> proto::Message {
    proto::Message {
        id: id.to_owned(),
        metadata: Some(proto::MessageMetadata {
            fairness_key: "default".to_owned(),
            queue_id: "orders".to_owned(),
            lease_token: format!("token-of-{id}"),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub fn frame(ids: &[&str]) -> proto::ConsumeResponse {
    proto::ConsumeResponse { messages: ids.iter().map(|id| message(id)).collect() }
}

/// A frame under one token, whose lease began at some moment of the broker's clock.
pub fn leased(token: &str, ids: &[&str], lease: Duration) -> proto::ConsumeResponse {
    let at = |since: Duration| {
        Some(prost_types::Timestamp {
            seconds: 1_900_000_000 + since.as_secs().cast_signed(),
            nanos: since.subsec_nanos().cast_signed(),
        })
    };
    let messages = ids.iter().map(|id| {
        let mut raw = message(id);
        if let Some(metadata) = &mut raw.metadata {
            token.clone_into(&mut metadata.lease_token);
        }
        raw.timestamps = Some(proto::MessageTimestamps {
            leased_at: at(Duration::ZERO),
            lease_expires_at: at(lease),
            ..Default::default()
        });
        raw
    });
    proto::ConsumeResponse { messages: messages.collect() }
}

/// Settles grants, and extends them, as asked.
pub fn settle_grants(broker: &Broker) {
    broker.on("SettleGrants", |call, out| async move {
        let count = call.request::<proto::SettleGrantsRequest>().settlements.len();
        let results = vec![proto::GrantResult::default(); count];
        out.send(&proto::SettleGrantsResponse { results });
    });
}
