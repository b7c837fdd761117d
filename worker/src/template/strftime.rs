//! Dates as templates ask for them: the part of strftime(3) that chat templates use.
//!
//! English names and UTC, always: a prompt must not depend on the machine's locale. A directive not known here is
//! refused rather than printed.

use std::fmt::Write;

use sanctum_shared::openai::timestamp::Civil;

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Letters of a short name.
const SHORT: usize = 3;

/// Writes `moment` as `format` says; `Err` holds the first directive that is not known.
pub(super) fn strftime(format: &str, moment: &Civil) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = rest.next();
        // `%-d`: without padding (a GNU extension that templates use).
        let padded = directive != Some('-');
        if !padded {
            directive = rest.next();
        }
        let written = match directive {
            Some(directive) => write_one(&mut out, directive, padded, moment),
            None => false,
        };
        if !written {
            return Err(
                directive.map_or_else(|| "%".to_owned(), |directive| format!("%{directive}"))
            );
        }
    }
    Ok(out)
}

fn write_one(out: &mut String, directive: char, padded: bool, moment: &Civil) -> bool {
    let mut number = |value: u32, width: usize| {
        let width = if padded { width } else { 0 };
        write!(out, "{value:0width$}").is_ok()
    };
    let twelve = (moment.hour + 11) % 12 + 1;
    let day_name = DAYS[moment.weekday as usize];
    let month_name = MONTHS[moment.month as usize - 1];
    match directive {
        'd' => number(moment.day, 2),
        'm' => number(moment.month, 2),
        'H' => number(moment.hour, 2),
        'I' => number(twelve, 2),
        'M' => number(moment.minute, 2),
        'S' => number(moment.second, 2),
        'j' => number(moment.year_day, 3),
        'w' => number(moment.weekday, 1),
        'e' => write!(out, "{:2}", moment.day).is_ok(),
        'y' => write!(out, "{:02}", moment.year.rem_euclid(100)).is_ok(),
        'Y' => write!(out, "{}", moment.year).is_ok(),
        'A' => push(out, day_name),
        'a' => push(out, &day_name[..SHORT]),
        'B' => push(out, month_name),
        'b' | 'h' => push(out, &month_name[..SHORT]),
        'p' => push(out, if moment.hour < 12 { "AM" } else { "PM" }),
        'Z' => push(out, "UTC"),
        'z' => push(out, "+0000"),
        '%' => push(out, "%"),
        'F' => compound(out, "%Y-%m-%d", moment),
        'T' => compound(out, "%H:%M:%S", moment),
        _ => false,
    }
}

fn push(out: &mut String, text: &str) -> bool {
    out.push_str(text);
    true
}

fn compound(out: &mut String, format: &str, moment: &Civil) -> bool {
    strftime(format, moment).is_ok_and(|text| push(out, &text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thursday, 2024-02-29 15:04:05 UTC; expectations from Python's `strftime` in the C locale.
    const MOMENT: u64 = 1_709_219_045;

    #[test]
    fn what_templates_ask_for() {
        let moment = Civil::from_unix(MOMENT);
        for (format, expected) in [
            ("%Y-%m-%d", "2024-02-29"),
            ("%d %b %Y", "29 Feb 2024"),
            ("%A, %B %d, %Y", "Thursday, February 29, 2024"),
            ("%H:%M:%S", "15:04:05"),
            ("%-I:%M %p", "3:04 PM"),
            ("%a %j %y %%", "Thu 060 24 %"),
            ("%F %T %Z", "2024-02-29 15:04:05 UTC"),
        ] {
            assert_eq!(strftime(format, &moment).as_deref(), Ok(expected), "{format}");
        }
    }

    #[test]
    fn the_unknown_is_refused() {
        let moment = Civil::from_unix(MOMENT);
        assert_eq!(strftime("%Q", &moment), Err("%Q".to_owned()));
        assert_eq!(strftime("50%", &moment), Err("%".to_owned()));
    }

    #[test]
    fn midnight_and_noon_are_twelve() {
        for (hour, expected) in [(0, "12 AM"), (11, "11 AM"), (12, "12 PM"), (23, "11 PM")] {
            let moment = Civil::from_unix(hour * 3600);
            assert_eq!(strftime("%I %p", &moment).as_deref(), Ok(expected));
        }
    }
}
