//! Setup of a connection before HTTP: the load balancer's header, then TLS. Determines the peer's
//! address; knows no request.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::proxy_protocol::{self, Header};
use crate::config;
use crate::tls::{Stream, Tls, TlsError};

/// Opens connections.
pub(super) struct Handshakes {
    /// Networks whose connections must begin with a load balancer's header, which is trusted.
    balancers: Vec<IpNet>,
    /// `None` if the listener speaks plain HTTP.
    pub(super) tls: Option<Tls>,
}

/// Reason why a connection was not opened.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// A load balancer did not send the client's address.
    Header,
    /// The TLS handshake failed.
    Handshake(io::Error),
    /// The connection is gone.
    Gone(io::Error),
}

impl Handshakes {
    pub(super) fn new(server: &config::Server) -> Result<Self, TlsError> {
        Ok(Self {
            balancers: server.proxy_protocol_from.clone(),
            tls: Tls::new(&server.tls, crate::tls::HTTP)?,
        })
    }

    /// Opens a connection from `peer`. The returned address is that of the actual client.
    pub(super) async fn open(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
    ) -> Result<(Stream, IpAddr), HandshakeError> {
        let mut address = peer.ip().to_canonical();
        if self.balancers.iter().any(|network| network.contains(&address)) {
            let source = proxy_header(&mut stream).await?;
            address = source.map_or(address, |source| source.ip().to_canonical());
        }
        let stream = match &self.tls {
            Some(tls) => tls.accept(stream).await.map_err(HandshakeError::Handshake)?,
            None => Stream::Plain(stream),
        };
        Ok((stream, address))
    }
}

/// Reads a load balancer's header from a connection, and not a byte more.
async fn proxy_header(stream: &mut TcpStream) -> Result<Option<SocketAddr>, HandshakeError> {
    let mut bytes = vec![0; proxy_protocol::MAX_BYTES];
    let mut taken = 0;
    loop {
        let ahead = stream.peek(&mut bytes[taken..]).await.map_err(HandshakeError::Gone)?;
        if ahead == 0 {
            return Err(HandshakeError::Gone(io::ErrorKind::UnexpectedEof.into()));
        }
        let (end, source) = match proxy_protocol::read(&bytes[..taken + ahead]) {
            Header::Invalid => return Err(HandshakeError::Header),
            Header::Incomplete => (taken + ahead, None),
            Header::Whole { length_bytes, source } => (length_bytes, Some(source)),
        };
        stream.read_exact(&mut bytes[taken..end]).await.map_err(HandshakeError::Gone)?;
        taken = end;
        if let Some(source) = source {
            return Ok(source);
        }
    }
}
