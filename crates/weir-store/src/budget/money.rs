//! Money as whole nano-dollars, and its decimal text form. No floats: a text is either an exact
//! amount or an error.

use std::fmt;

/// Decimal places of a dollar that are kept.
const DECIMALS: u32 = 9;
const NANOS: u64 = 10_u64.pow(DECIMALS);
/// Maximum digits before and after the point; no price has more.
const MAX_DIGITS: usize = 30;

/// An amount in billionths of a dollar, up to 18 billion dollars.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NanoUsd(pub u64);

impl NanoUsd {
    /// Amounts that [`NanoUsd::parse`] accepts, for error messages.
    pub const FORM: &str = "dollars from 0 to 18446744073 with at most nine decimals";

    /// Parses dollars: digits with an optional point and at most nine decimals. Returns `None` for
    /// signs, exponents, and finer or larger amounts.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = match text.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (text, None),
        };
        if whole.is_empty() || fraction.is_some_and(str::is_empty) {
            return None;
        }
        let add = |sum: u64, byte: u8| {
            let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
            sum.checked_mul(10)?.checked_add(digit)
        };
        let dollars = whole.bytes().try_fold(0, add)?;
        let fraction = fraction.unwrap_or_default();
        let (kept, finer) = fraction.split_at_checked(DECIMALS as usize).unwrap_or((fraction, ""));
        if finer.bytes().any(|byte| byte != b'0') {
            return None;
        }
        let nanos = kept.bytes().try_fold(0, add)? * 10_u64.pow(DECIMALS - kept.len() as u32);
        dollars.checked_mul(NANOS)?.checked_add(nanos).map(Self)
    }

    /// Returns the sum, capped at the largest amount.
    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the sum, or `None` on overflow.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// Returns the difference, or zero if `other` is larger.
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Formats the amount for [`NanoUsd::parse`]: exact, with at least two decimals.
    pub fn to_decimal(self) -> String {
        self.digits(2)
    }

    /// Formats the amount for people, rounded up: `$1,234.56`, and four decimals below a dollar.
    pub fn shown(self) -> String {
        let decimals = if self.0 >= NANOS { 2 } else { 4 };
        let steps_per_usd = 10_u64.pow(decimals);
        let steps = self.0.div_ceil(NANOS / steps_per_usd);
        let (whole, fraction) = (steps / steps_per_usd, steps % steps_per_usd);
        format!("${}.{fraction:0width$}", grouped(whole), width = decimals as usize)
    }

    /// Formats the amount with as few decimals as possible, but at least `least`.
    pub(super) fn digits(self, least: usize) -> String {
        let fraction = format!("{:09}", self.0 % NANOS);
        let needed = fraction.trim_end_matches('0').len().max(least);
        let point = if needed > 0 { "." } else { "" };
        format!("{}{point}{}", self.0 / NANOS, &fraction[..needed])
    }
}

/// Formats a number with a comma between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats as `$0.001234`: exact, with at least two decimals.
impl fmt::Display for NanoUsd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("${}", self.to_decimal()))
    }
}

/// Multiplies the decimal number `text` by ten to the power of `decimals` and rounds to the nearest
/// integer. Also returns whether the result is exact. Accepts unsigned JSON numbers; returns `None`
/// for other texts and for results beyond `u64`.
pub fn scaled(text: &str, decimals: u32) -> Option<(u64, bool)> {
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i16>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (number, ""),
    };
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = !whole.is_empty() && all_digits(whole) && all_digits(fraction);
    if !is_number || whole.len() + fraction.len() > MAX_DIGITS {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let power = i64::from(exponent) + i64::from(decimals) - fraction.len() as i64;
    if digits == 0 {
        return Some((0, true));
    }
    if power >= 0 {
        let factor = 10_u128.checked_pow(u32::try_from(power).ok()?)?;
        let value = digits.checked_mul(factor)?;
        return Some((u64::try_from(value).ok()?, true));
    }
    let Some(divisor) = u32::try_from(-power).ok().and_then(|power| 10_u128.checked_pow(power))
    else {
        // Thirty digits are negligible at ten to the power of -38.
        return Some((0, false));
    };
    let rest = digits % divisor;
    let value = digits / divisor + u128::from(rest >= divisor - rest);
    Some((u64::try_from(value).ok()?, rest == 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_for_people_are_rounded_up() {
        for (nano_usd, shown) in [
            (0, "$0.0000"),
            (1, "$0.0001"),
            (1_200_000, "$0.0012"),
            (999_950_000, "$1.0000"),
            (NANOS, "$1.00"),
            (1_230_000_001, "$1.24"),
            (1_234_560_000_000, "$1,234.56"),
        ] {
            assert_eq!(NanoUsd(nano_usd).shown(), shown);
        }
    }

    #[test]
    fn dollars_are_read_exactly_or_not_at_all() {
        for (text, nanos) in [
            ("0", Some(0)),
            ("2.50", Some(2_500_000_000)),
            ("0.075", Some(75_000_000)),
            ("0.000000001", Some(1)),
            ("1.0000000000", Some(NANOS)),
            ("18446744073.709551615", Some(u64::MAX)),
            ("18446744073.709551616", None),
            ("0.0000000001", None),
            ("0.00000000000000000000000000000", Some(0)),
            ("0.000000000x", None),
            ("0.12345678é", None),
            ("é.1", None),
            ("", None),
            (".", None),
            (".5", None),
            ("5.", None),
            ("1.2.3", None),
            ("-1", None),
            ("+1", None),
            ("1e3", None),
            ("1_000", None),
            ("1,5", None),
            (" 1", None),
            ("NaN", None),
            ("inf", None),
            ("٣", None),
            ("$1", None),
            ("99999999999999999999999999999999999999999", None),
        ] {
            assert_eq!(NanoUsd::parse(text), nanos.map(NanoUsd), "{text}");
        }
    }

    #[test]
    fn amounts_are_shown_to_the_last_digit() {
        for (nanos, shown) in [
            (0, "$0.00"),
            (1_234_000, "$0.001234"),
            (2_500_000_000, "$2.50"),
            (1, "$0.000000001"),
            (u64::MAX, "$18446744073.709551615"),
        ] {
            assert_eq!(NanoUsd(nanos).to_string(), shown);
        }
        assert_eq!(format!("{:>8}", NanoUsd(NANOS)), "   $1.00");
    }

    #[test]
    fn sums_are_capped() {
        let most = NanoUsd(u64::MAX);
        assert_eq!(most.saturating_add(NanoUsd(1)), most);
        assert_eq!(most.checked_add(NanoUsd(1)), None);
        assert_eq!(NanoUsd(2).checked_add(NanoUsd(3)), Some(NanoUsd(5)));
        assert_eq!(NanoUsd(2).saturating_sub(NanoUsd(3)), NanoUsd(0));
    }

    #[test]
    fn numbers_of_price_lists_are_scaled_and_rounded_to_the_nearest() {
        for (text, scaled_to) in [
            ("2.5e-06", Some((2_500_000_000, true))),
            ("0.00015", Some((150_000_000_000, true))),
            ("1E-7", Some((100_000_000, true))),
            ("2e+0", Some((2_000_000_000_000_000, true))),
            ("0.0", Some((0, true))),
            ("0e999", Some((0, true))),
            ("2.0000000000000002e-07", Some((200_000_000, false))),
            ("1.9999999999999998e-07", Some((200_000_000, false))),
            ("5e-16", Some((1, false))),
            ("4e-16", Some((0, false))),
            ("1e-9999", Some((0, false))),
            ("1e9999", None),
            ("1e40", None),
            ("1e99999", None),
            ("-1e-6", None),
            ("null", None),
            ("\"1\"", None),
            ("1e", None),
            ("e5", None),
        ] {
            assert_eq!(scaled(text, 15), scaled_to, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_as_the_same(nanos in any::<u64>()) {
            let amount = NanoUsd(nanos);
            prop_assert_eq!(NanoUsd::parse(&amount.to_decimal()), Some(amount));
            prop_assert_eq!(NanoUsd::parse(&amount.digits(0)), Some(amount));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9.eE+\\-x]{0,60}", decimals in 0_u32..30) {
            let _ = scaled(&text, decimals);
            let _ = NanoUsd::parse(&text);
        }
    }
}
