//! From a request on the wire to what the proxy takes: limits, body, encoding, tenant. Answers
//! nothing itself and knows no route.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT};
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use http_body::Body as _;

use super::body::{self, Bodies, Permit, Refused};
use super::decode::{self, Encoding, Unsupported};
use crate::proxy::{Body, Call, ErrorKind, ProxyError, Tenant};
use crate::upstream::Target;
use crate::wire::Protocol;

/// The headers that may carry a caller's credential, in one form or another.
const CREDENTIALS: [HeaderName; 3] =
    [AUTHORIZATION, HeaderName::from_static("api-key"), HeaderName::from_static("x-api-key")];
/// When to try again after there was no room for a body.
const RETRY_AFTER_MS: u64 = 1000;

/// Takes requests in.
pub struct Acceptor {
    bodies: Bodies,
    max_body_bytes: usize,
    tenant_key: [u8; blake3::KEY_LEN],
}

impl Acceptor {
    /// An acceptor whose tenants mean nothing to those who do not know `tenant_key`.
    pub fn new(
        max_body_bytes: usize,
        max_bodies_in_flight_bytes: usize,
        tenant_key: [u8; blake3::KEY_LEN],
    ) -> Self {
        Self { bodies: Bodies::new(max_bodies_in_flight_bytes), max_body_bytes, tenant_key }
    }

    /// Reads a request whole.
    pub async fn call(
        &self,
        parts: Parts,
        body: Body,
        protocol: Protocol,
        target: Target,
    ) -> Result<Call, ProxyError> {
        let encodings = match content_encodings(&parts.headers) {
            Ok(encodings) => encodings,
            Err(problem) => {
                Self::refuse_body(&parts.headers, body);
                return Err(problem);
            }
        };
        let (received, permit) = self.receive(&parts.headers, body).await?;
        let (decoded, permit) = if encodings.is_empty() {
            (None, permit)
        } else {
            let (decoded, permit) = self.decode(received.clone(), encodings, permit).await?;
            (Some(decoded), permit)
        };
        Ok(Call {
            protocol,
            target,
            method: parts.method,
            tenant: self.tenant(&parts.headers),
            headers: parts.headers,
            received,
            decoded,
            permit: Box::new(permit),
        })
    }

    async fn receive(
        &self,
        headers: &HeaderMap,
        mut body: Body,
    ) -> Result<(Bytes, Permit), ProxyError> {
        let mut permit = self.bodies.permit();
        let declared_bytes =
            headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let read =
            body::read_whole(&mut body, declared_bytes, self.max_body_bytes, &mut permit).await;
        match read {
            Ok(received) => Ok((received, permit)),
            Err(body::Failure::Refused(refused)) => {
                Self::refuse_body(headers, body);
                Err(self.refused(refused))
            }
            Err(body::Failure::Stalled) => {
                Err(ProxyError::new(ErrorKind::BodyTimeout, "The request's body stopped coming."))
            }
            Err(body::Failure::Broken) => Err(ProxyError::new(
                ErrorKind::InvalidRequest,
                "The request's body ended before it was complete.",
            )),
        }
    }

    /// Lets the caller finish sending what nobody wants. One that waits to be asked for its body is
    /// not asked.
    pub fn refuse_body(headers: &HeaderMap, body: Body) {
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
        let outermost = encodings.last().map_or("", |encoding| encoding.name());
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
            Ok(Err(decode::Failure::Refused(refused))) => Err(self.refused(refused)),
            Ok(Err(decode::Failure::Broken(encoding))) => Err(broken(encoding.name())),
            // A decoder that gives up on hostile bytes takes nothing else with it.
            Err(_) => Err(broken(outermost)),
        }
    }

    fn refused(&self, refused: Refused) -> ProxyError {
        match refused {
            Refused::TooLarge => {
                let message = format!(
                    "The request's body is larger than {} bytes (`server.max_body_bytes` in \
                     weir's configuration).",
                    self.max_body_bytes
                );
                ProxyError::new(ErrorKind::BodyTooLarge, message)
            }
            Refused::NoRoom => ProxyError {
                retry_after_ms: Some(RETRY_AFTER_MS),
                ..ProxyError::new(
                    ErrorKind::Overloaded,
                    "weir holds as many bytes of requests as it may at the moment \
                     (`server.max_bodies_in_flight_bytes`). Try again shortly.",
                )
            },
        }
    }

    /// Whose request it is. All that may be a credential counts: two callers are one only if they
    /// agree in every part.
    pub fn tenant(&self, headers: &HeaderMap) -> Tenant {
        let values = |name| headers.get_all(name).iter();
        if CREDENTIALS.iter().flat_map(values).all(|value| is_blank(value.as_bytes())) {
            return Tenant::ANONYMOUS;
        }
        let mut hasher = blake3::Hasher::new_keyed(&self.tenant_key);
        for (place, name) in (0u8..).zip(&CREDENTIALS) {
            for value in headers.get_all(name) {
                hasher.update(&[place]);
                hasher.update(&value.len().to_le_bytes());
                hasher.update(value.as_bytes());
            }
        }
        let mut tenant = Tenant([0; 16]);
        hasher.finalize_xof().fill(&mut tenant.0);
        tenant
    }
}

/// Whether a header names nobody: one without a value, or the bare scheme that a client sends whose
/// key is empty.
fn is_blank(value: &[u8]) -> bool {
    let value = value.trim_ascii();
    value.is_empty() || value.eq_ignore_ascii_case(b"bearer")
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(rows: &[(&'static str, &'static str)]) -> HeaderMap {
        rows.iter()
            .map(|(name, value)| {
                let name = HeaderName::from_static(name);
                (name, HeaderValue::from_static(value))
            })
            .collect()
    }

    #[test]
    fn a_tenant_is_its_whole_credential() {
        let acceptor = Acceptor::new(1, 1, [1; 32]);
        let tenant = |rows: &[_]| acceptor.tenant(&headers(rows));
        let different = [
            tenant(&[]),
            tenant(&[("authorization", "Bearer sk-same-start-1")]),
            tenant(&[("authorization", "Bearer sk-same-start-2")]),
            tenant(&[("api-key", "Bearer sk-same-start-1")]),
            tenant(&[("x-api-key", "Bearer sk-same-start-1")]),
            tenant(&[("authorization", "Bearer sk-same-start-1"), ("api-key", "k")]),
        ];
        for (index, one) in different.iter().enumerate() {
            assert!(!different[..index].contains(one), "{index}");
        }
        for nobody in [("user-agent", "any"), ("authorization", "Bearer "), ("api-key", "")] {
            assert_eq!(tenant(&[nobody]), Tenant::ANONYMOUS, "{nobody:?}");
        }
        assert_eq!(different[0], Tenant::ANONYMOUS);
        assert_eq!(tenant(&[("authorization", "Bearer sk-same-start-1")]), different[1]);
    }

    #[test]
    fn a_tenant_is_one_under_one_secret_alone() {
        let tenant = |key| {
            let rows = [("authorization", "Bearer sk-1")];
            Acceptor::new(1, 1, [key; 32]).tenant(&headers(&rows))
        };
        assert_eq!(tenant(1), tenant(1));
        assert_ne!(tenant(1), tenant(2));
    }
}
