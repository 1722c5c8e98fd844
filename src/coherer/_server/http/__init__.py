"""HTTP for programs and operators: TubeMQ's administration, its accounts, and other pages."""
