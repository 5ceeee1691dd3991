// SPDX-License-Identifier: AGPL-3.0-only
//! Makes the connections of a channel: to the first of its addresses that answers.

use std::future::{Future, poll_fn};
use std::io::{Error, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

use crate::BoxError;
use crate::address::Address;
use crate::connection::chain;
use crate::link::{Link, Watch};
use crate::tls::Tls;

// The time limit of one attempt, TLS handshake included.
const CONNECT_TIME: Duration = Duration::from_secs(5);
// The same where there are others to try: two that are silent leave a call of 5 s time for a third.
const TURN_TIME: Duration = Duration::from_secs(2);

/// The members of a cluster, tried in order for each connection.
#[derive(Clone)]
pub(crate) struct Connector {
    addresses: Arc<[Address]>,
    tls: Option<Arc<Tls>>,
    watch: Arc<Watch>,
    tcp: HttpConnector,
}

impl Connector {
    pub(crate) fn new(addresses: &[Address], tls: Option<Arc<Tls>>, watch: &Arc<Watch>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        Self { addresses: addresses.into(), tls, watch: Arc::clone(watch), tcp }
    }

    async fn connect(self) -> Result<TokioIo<Link>, BoxError> {
        let limit = if self.addresses.len() > 1 { TURN_TIME } else { CONNECT_TIME };
        let mut failures = Vec::new();
        for address in &*self.addresses {
            let failure = match timeout(limit, self.reach(address)).await {
                Ok(Ok(link)) => return Ok(TokioIo::new(link)),
                Ok(Err(error)) => error,
                Err(_) => {
                    let text = format!("no connection within {limit:?}");
                    Error::new(ErrorKind::TimedOut, text).into()
                }
            };
            failures.push((address, failure));
        }
        let of_each =
            failures.iter().map(|(address, error)| format!("{address}: {}", chain(&**error)));
        let text = of_each.collect::<Vec<_>>().join("; ");
        self.watch.unreachable(text.clone());
        match failures.pop() {
            // With its causes.
            Some((_, error)) if failures.is_empty() => Err(error),
            _ => Err(text.into()),
        }
    }

    async fn reach(&self, address: &Address) -> Result<Link, BoxError> {
        let mut tcp = self.tcp.clone();
        poll_fn(|context| tcp.poll_ready(context)).await?;
        let stream = tcp.call(address.uri()).await?.into_inner();
        let (watch, shown) = (&self.watch, address.to_string());
        Ok(match &self.tls {
            Some(tls) => watch.link(shown, tls.connect(address.host(), stream).await?),
            None => watch.link(shown, stream),
        })
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Link>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    /// The channel's own idea of where to go is that of a single address.
    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}
