// SPDX-License-Identifier: AGPL-3.0-only
//! Where brokers are: `host:port`, or several of them.

use std::fmt;
use std::str::FromStr;

use tonic::codegen::http::Uri;

use crate::error::{Error, Result};
use crate::options::DEFAULT_TARGET;

/// A place to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    authority: String,
    uri: Uri,
}

impl Address {
    /// Those of a target, `a:5555` or `a:5555,b:5555`, in order; at least one.
    pub(crate) fn all_of(target: &str) -> Result<Vec<Self>> {
        target.split(',').map(|address| address.trim().parse()).collect()
    }

    /// How HTTP names it; without TLS, which comes after the connection here.
    pub(crate) fn uri(&self) -> Uri {
        self.uri.clone()
    }

    /// The name that its certificate has to be for, or the IP address.
    pub(crate) fn host(&self) -> &str {
        let host = self.authority.rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = || {
            Error::invalid(&format!(
                "target \"{text}\" is not host:port, for example \"{DEFAULT_TARGET}\""
            ))
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
        let is_name = !host.is_empty() && !host.contains(['/', '@', '?', '#']);
        let is_bracketed = host.starts_with('[') && host.ends_with(']');
        let is_port = port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok_and(|port| port != 0);
        if !is_name || !is_port || (!is_bracketed && host.contains(':')) {
            return Err(refused());
        }
        let uri = format!("http://{text}").parse().map_err(|_| refused())?;
        Ok(Self { authority: text.to_owned(), uri })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.authority)
    }
}
