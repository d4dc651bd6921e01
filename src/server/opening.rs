//! What stands before HTTP on a connection: the header of a load balancer, then TLS. Tells whose the
//! connection is; knows no request.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::config;
use crate::tls::{Stream, Tls, TlsError};
use crate::wire::preamble::{self, Preamble};

/// Opens connections.
pub struct Openings {
    /// From here headers of load balancers are wanted and believed.
    balancers: Vec<IpNet>,
    /// `None` where plain HTTP is spoken.
    tls: Option<Tls>,
}

/// Why a connection was not opened.
#[derive(Debug)]
pub enum Unopened {
    /// A load balancer did not say whose it is.
    Preamble,
    /// There is no TLS on it.
    Handshake(io::Error),
    /// It is gone.
    Gone(io::Error),
}

impl Openings {
    pub fn new(server: &config::Server) -> Result<Self, TlsError> {
        Ok(Self {
            balancers: server.proxy_protocol_from.clone(),
            tls: Tls::new(&server.tls, crate::tls::HTTP)?,
        })
    }

    /// What handshakes go by; `None` where there are none.
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Opens a connection from `peer`; the address is that of whoever is at its other end.
    pub async fn open(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
    ) -> Result<(Stream, IpAddr), Unopened> {
        let mut address = peer.ip().to_canonical();
        if self.balancers.iter().any(|network| network.contains(&address)) {
            let told = preamble(&mut stream).await?;
            address = told.map_or(address, |source| source.ip().to_canonical());
        }
        let stream = match &self.tls {
            Some(tls) => tls.accept(stream).await.map_err(Unopened::Handshake)?,
            None => Stream::Plain(stream),
        };
        Ok((stream, address))
    }
}

/// Takes a load balancer's header off a connection, and not a byte more.
async fn preamble(stream: &mut TcpStream) -> Result<Option<SocketAddr>, Unopened> {
    let mut bytes = vec![0; preamble::MAX_BYTES];
    let mut taken = 0;
    loop {
        let ahead = stream.peek(&mut bytes[taken..]).await.map_err(Unopened::Gone)?;
        if ahead == 0 {
            return Err(Unopened::Gone(io::ErrorKind::UnexpectedEof.into()));
        }
        let (end, told) = match preamble::read(&bytes[..taken + ahead]) {
            Preamble::Invalid => return Err(Unopened::Preamble),
            Preamble::Incomplete => (taken + ahead, None),
            Preamble::Whole { length_bytes, source } => (length_bytes, Some(source)),
        };
        stream.read_exact(&mut bytes[taken..end]).await.map_err(Unopened::Gone)?;
        taken = end;
        if let Some(source) = told {
            return Ok(source);
        }
    }
}
