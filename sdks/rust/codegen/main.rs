// SPDX-License-Identifier: AGPL-3.0-only
//! Generates the SDK's messages and client stubs: `fila-codegen DESCRIPTOR_SET OUT_DIR`.
//!
//! It starts from a descriptor set, so that it needs no protoc of its own: whoever checks the
//! contract has made one already. Servers are not generated; the SDK has no use for them.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;
use prost_types::FileDescriptorSet;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(descriptors), Some(out), None) =
        (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err("usage: fila-codegen DESCRIPTOR_SET OUT_DIR".into());
    };
    let contract = FileDescriptorSet::decode(std::fs::read(descriptors)?.as_slice())?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .bytes(".")
        .emit_rerun_if_changed(false)
        .out_dir(out)
        .compile_fds(contract)?;
    Ok(())
}
