//! Civil time (UTC) from Unix seconds, for the places where a protocol or a template wants a date in words.
//!
//! Pure: whoever needs "now" passes it in. Time zones and leap seconds are not known here.

/// A moment in the proleptic Gregorian calendar, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Civil {
    /// Year.
    pub year: i64,
    /// Month, 1 to 12.
    pub month: u32,
    /// Day of the month, 1 to 31.
    pub day: u32,
    /// Hour, 0 to 23.
    pub hour: u32,
    /// Minute, 0 to 59.
    pub minute: u32,
    /// Second, 0 to 59.
    pub second: u32,
    /// Day of the week, Sunday is 0.
    pub weekday: u32,
    /// Day of the year, 1 to 366.
    pub year_day: u32,
}

const DAY_S: u64 = 86_400;
/// Days of 400 years, after which the calendar repeats.
const ERA_DAYS: u64 = 146_097;
/// Days from 1 March of year 0 to 1 January 1970.
const EPOCH_FROM_MARCH_0: u64 = 719_468;

impl Civil {
    /// The moment `unix` seconds after 1970-01-01T00:00:00Z.
    ///
    /// Counts years from March, so that the leap day comes last (Howard Hinnant, "chrono-compatible low-level date
    /// algorithms").
    pub fn from_unix(unix: u64) -> Self {
        let (days, second_of_day) = (unix / DAY_S, small(unix % DAY_S));
        let shifted = days + EPOCH_FROM_MARCH_0;
        let (era, day_of_era) = (shifted / ERA_DAYS, shifted % ERA_DAYS);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = small(day_of_year - (153 * march_month + 2) / 5 + 1);
        let month = small(if march_month < 10 { march_month + 3 } else { march_month - 9 });
        let year = (era * 400 + year_of_era + u64::from(month <= 2)).cast_signed();
        Self {
            year,
            month,
            day,
            hour: second_of_day / 3_600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
            weekday: small((days + 4) % 7),
            year_day: day_of_the_year(year, month, day),
        }
    }

    /// `2025-01-31T12:00:00Z`.
    pub fn rfc3339(&self) -> String {
        format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
            self.year, self.month, self.day, self.hour, self.minute, self.second
        )
    }
}

fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn day_of_the_year(year: i64, month: u32, day: u32) -> u32 {
    const BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    BEFORE[month as usize - 1] + day + u32::from(leap && month > 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        // Checked against `date -u -d @N`.
        for (unix, text, weekday, year_day) in [
            (0, "1970-01-01T00:00:00Z", 4, 1),
            (951_782_400, "2000-02-29T00:00:00Z", 2, 60),
            (1_709_251_199, "2024-02-29T23:59:59Z", 4, 60),
            (1_735_689_599, "2024-12-31T23:59:59Z", 2, 366),
            (4_102_444_800, "2100-01-01T00:00:00Z", 5, 1),
        ] {
            let civil = Civil::from_unix(unix);
            assert_eq!(civil.rfc3339(), text);
            assert_eq!((civil.weekday, civil.year_day), (weekday, year_day), "{text}");
        }
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = Civil::from_unix(0);
        for day in 1..60_000 {
            let civil = Civil::from_unix(day * DAY_S);
            assert_eq!(civil.weekday, (before.weekday + 1) % 7);
            let next_in_year = civil.year_day == before.year_day + 1 && civil.year == before.year;
            let new_year = civil.year_day == 1 && civil.year == before.year + 1;
            assert!(next_in_year || new_year, "{civil:?} after {before:?}");
            before = civil;
        }
    }
}
