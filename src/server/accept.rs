//! Admission of request bodies: limits, reading, decoding. Sends no answer and knows no route.

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, EXPECT};
use http_body::Body as _;

use super::body::{self, Bodies, BodyRefused, Permit};
use super::decode::{self, Encoding, Unsupported};
use crate::proxy::{Body, ErrorKind, ProxyError};
use weir_store::Tenant;

/// UTF-8's byte order mark, which some clients write before JSON.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reader of request bodies.
pub(super) struct Acceptor {
    bodies: Bodies,
    max_body_bytes: usize,
}

/// Complete body of a request.
pub(super) struct Received {
    /// Body as received, possibly compressed.
    pub received: Bytes,
    /// Body to read, if `received` was compressed or begins with a byte order mark.
    pub decoded: Option<Bytes>,
    /// Releases the body's share of memory on drop.
    pub permit: Permit,
}

impl Received {
    /// Returns the body as it is read.
    pub(super) fn readable(&self) -> &Bytes {
        self.decoded.as_ref().unwrap_or(&self.received)
    }
}

impl Acceptor {
    /// Creates an acceptor with a limit on one body, and one on all `bodies` together.
    pub(super) fn new(max_body_bytes: usize, bodies: Bodies) -> Self {
        Self { bodies, max_body_bytes }
    }

    /// Reads the body of a request of `tenant` completely.
    pub(super) async fn body(
        &self,
        tenant: Tenant,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Received, ProxyError> {
        let encodings = match content_encodings(headers) {
            Ok(encodings) => encodings,
            Err(problem) => {
                Self::refuse_body(headers, body);
                return Err(problem);
            }
        };
        let (received, permit) = self.receive(tenant, headers, body).await?;
        let (mut decoded, mut permit) = (None, permit);
        if !encodings.is_empty() {
            let (own, held) = self.decode(received.clone(), encodings, permit).await?;
            (decoded, permit) = (Some(own), held);
        }
        let readable = decoded.as_ref().unwrap_or(&received);
        if readable.starts_with(BYTE_ORDER_MARK) {
            decoded = Some(readable.slice(BYTE_ORDER_MARK.len()..));
        }
        Ok(Received { received, decoded, permit })
    }

    async fn receive(
        &self,
        tenant: Tenant,
        headers: &HeaderMap,
        mut body: Body,
    ) -> Result<(Bytes, Permit), ProxyError> {
        let mut permit = self.bodies.permit(tenant);
        let declared_bytes =
            headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let read =
            body::read_whole(&mut body, declared_bytes, self.max_body_bytes, &mut permit).await;
        match read {
            Ok(received) => Ok((received, permit)),
            Err(body::BodyFailure::Refused(refused)) => {
                Self::refuse_body(headers, body);
                Err(self.refused(refused))
            }
            Err(body::BodyFailure::Late(late)) => {
                Err(ProxyError::new(ErrorKind::BodyTimeout, late.to_string()))
            }
            Err(body::BodyFailure::Ended) => Err(ProxyError::new(
                ErrorKind::InvalidRequest,
                "The request's body ended before it was complete.",
            )),
            Err(body::BodyFailure::Malformed) => Err(ProxyError::new(
                ErrorKind::InvalidRequest,
                "The request's body has an invalid chunk or trailer.",
            )),
        }
    }

    /// Lets the caller finish sending a body that was refused. If the caller waits for `100
    /// Continue`, none is sent.
    pub(super) fn refuse_body(headers: &HeaderMap, body: Body) {
        if !headers.contains_key(EXPECT) && !body.is_end_stream() {
            body::linger(body);
        }
    }

    async fn decode(
        &self,
        received: Bytes,
        encodings: Vec<Encoding>,
        mut permit: Permit,
    ) -> Result<(Bytes, Permit), ProxyError> {
        let outermost = encodings.last().map_or("", |encoding| encoding.word());
        let max_bytes = self.max_body_bytes;
        let work = move || {
            let decoded = decode::decode(&received, &encodings, max_bytes, &mut permit)?;
            Ok((decoded, permit))
        };
        let broken = |name: &str| {
            let message = format!("The request's body is not valid {name}.");
            ProxyError::new(ErrorKind::InvalidRequest, message)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(Ok(decoded)) => Ok(decoded),
            Ok(Err(decode::BodyFailure::Refused(refused))) => Err(self.refused(refused)),
            Ok(Err(decode::BodyFailure::Broken(encoding))) => Err(broken(encoding.word())),
            // A decoder that panics on hostile bytes affects only this request.
            Err(_) => Err(broken(outermost)),
        }
    }

    fn refused(&self, refused: BodyRefused) -> ProxyError {
        match refused {
            BodyRefused::TooLarge => {
                let message = format!(
                    "The request's body is larger than {} bytes (`server.max_body_bytes` in \
                     weir's configuration).",
                    self.max_body_bytes
                );
                ProxyError::new(ErrorKind::BodyTooLarge, message)
            }
            BodyRefused::NoRoom => ProxyError::overloaded(
                "weir has no room for more request bodies at the moment \
                     (`server.max_bodies_in_flight_bytes`). Try again shortly.",
            ),
        }
    }
}

fn content_encodings(headers: &HeaderMap) -> Result<Vec<Encoding>, ProxyError> {
    let values = headers.get_all(CONTENT_ENCODING);
    decode::encodings(values.iter().map(|value| value.as_bytes())).map_err(|unsupported| {
        let said = match unsupported {
            Unsupported::Named(name) => format!("the content encoding '{name}'"),
            Unsupported::TooMany => "so many content encodings on one body".to_owned(),
        };
        let message = format!(
            "weir does not support {said}. Send the body in one of: identity, {}.",
            decode::SUPPORTED_ENCODINGS
        );
        ProxyError::new(ErrorKind::UnsupportedEncoding, message)
    })
}
