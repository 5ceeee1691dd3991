// SPDX-License-Identifier: AGPL-3.0-only
//! What the SDK does on the wire, against a scripted broker in this process.

mod access;
mod admin;
mod around;
mod broker;
mod coalesce;
mod connection;
mod consume;
mod errors;
mod grants;
mod keys;
mod leases;
mod link;
mod log;
mod pipeline;
mod produce;
mod raw;
mod settle;
#[cfg(feature = "testing")]
mod testing;
mod throttle;
mod tls;
#[cfg(feature = "otel")]
mod tracing;
mod worker;

#[allow(clippy::all, clippy::pedantic, missing_docs, unused)]
mod proto {
    include!("../../src/proto/fila.v1.rs");
}
