"""The built-in environments, one a file, which gives it its name; its one public class is the environment."""
