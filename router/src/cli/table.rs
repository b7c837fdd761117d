//! Plain tables: columns as wide as their widest cell, two blanks between them, nothing a pipe could not carry.

/// A table with its head.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as lines, without trailing blanks.
    pub(super) fn lines(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths);
            let line: Vec<String> = cells.map(|(cell, width)| format!("{cell:<width$}")).collect();
            text.push_str(line.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// A time span as people say it: `42s`, `3m10s`, `5h02m`, `3d04h`.
pub(super) fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_cleanly() {
        let mut table = Table::new(&["SEAT", "STATE"]);
        table.row(vec!["council".into(), "up".into()]);
        table.row(vec!["é".into(), String::new()]);
        assert_eq!(table.lines(), "SEAT     STATE\ncouncil  up\né\n");
    }

    #[test]
    fn spans_are_short() {
        let spans: Vec<String> = [0, 59, 190, 18_120, 273_600].into_iter().map(span).collect();
        assert_eq!(spans, ["0s", "59s", "3m10s", "5h02m", "3d04h"]);
    }
}
