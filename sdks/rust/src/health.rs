// SPDX-License-Identifier: AGPL-3.0-only
//! Whether the broker is there: gRPC's health service, which is no part of Fila's contract.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::client::Client;
use crate::connection::{Stub, chance, deadline_after};
use crate::error::{Error, ErrorKind, Result};
use crate::transport::Transport;

// For a broker that starts beside its client, on a machine that is busy.
const READY_TIME: Duration = Duration::from_secs(30);
const CHECK: &str = "/grpc.health.v1.Health/Check";
const SERVING: i32 = 1;

#[derive(Clone, PartialEq, prost::Message)]
struct CheckRequest {
    // Empty means the broker as a whole.
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

struct Health(Grpc<Transport>);

impl Stub for Health {
    fn on(transport: Transport, max_message_bytes: usize) -> Self {
        Self(Grpc::new(transport).max_decoding_message_size(max_message_bytes))
    }
}

impl Health {
    async fn check(
        mut self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        self.0.ready().await.map_err(Status::from_error)?;
        let path = PathAndQuery::from_static(CHECK);
        self.0.unary(request, path, ProstCodec::default()).await
    }
}

impl Client {
    /// Asks the broker whether it serves; returns how long the answer took. Needs no permission.
    ///
    /// Fails with [`Unavailable`](ErrorKind::Unavailable) when it does not serve, or is not there.
    pub async fn ping(&self) -> Result<Duration> {
        let began = Instant::now();
        let check = |health: Health, request| health.check(request);
        let answer = self.call().send(CheckRequest::default(), check).await?;
        if answer.status == SERVING {
            Ok(began.elapsed())
        } else {
            Err(Error::from_status("UNAVAILABLE", None, "the broker is not serving", None))
        }
    }

    /// Waits until the broker serves, 30 s unless `timeout` says otherwise; between attempts as
    /// [`backoff`](crate::ClientBuilder::backoff) says. For tests, and for programs that start
    /// beside their broker; consumers wait for theirs anyway.
    ///
    /// Fails with [`DeadlineExceeded`](ErrorKind::DeadlineExceeded), and the text of the last
    /// failure, when it takes longer, and at once where waiting would not help.
    pub async fn wait_ready(&self, timeout: Option<Duration>) -> Result<()> {
        let timeout = timeout.unwrap_or(READY_TIME);
        let deadline = deadline_after(timeout);
        let mut attempts = 0;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let error = match self.with_timeout(self.timeout().min(remaining)).ping().await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_unavailable() => error,
                Err(error) if error.kind() == ErrorKind::DeadlineExceeded => error,
                Err(error) => return Err(error),
            };
            let next = Instant::now() + self.connection().backoff.delay(attempts, chance());
            attempts += 1;
            tokio::select! {
                () = sleep_until(next.min(deadline)) => {}
                () = self.connection().closing() => {}
            }
            if Instant::now() >= deadline {
                let text = format!("the broker was not ready within {timeout:?}: {error}");
                return Err(Error::too_late(&text));
            }
        }
    }
}
