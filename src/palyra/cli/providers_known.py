"""Providers of models that many people use: where each is, how it is spoken to, and where its key usually stands."""

from dataclasses import dataclass

from palyra.core.model import Dialect


@dataclass(frozen=True, slots=True)
class Known:
    """One of them."""

    name: str
    title: str
    dialect: Dialect
    base_url: str | None = None
    """None for the maker's own address, which the dialect knows."""
    variables: tuple[str, ...] = ()
    """Where its key usually stands in the environment; none for a server on this machine, which wants no key."""
    host_variable: str | None = None
    """The variable that says where a server on this machine answers."""

    @property
    def is_server(self) -> bool:
        """Whether it is a server on this machine."""
        return not self.variables


KNOWN = {
    one.name: one
    for one in (
        Known("anthropic", "Anthropic", Dialect.ANTHROPIC, variables=("ANTHROPIC_API_KEY",)),
        Known("openai", "OpenAI", Dialect.RESPONSES, variables=("OPENAI_API_KEY",)),
        Known("gemini", "Google Gemini", Dialect.GEMINI, variables=("GEMINI_API_KEY", "GOOGLE_API_KEY")),
        Known("openrouter", "OpenRouter", Dialect.OPENAI, "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
        Known("deepseek", "DeepSeek", Dialect.OPENAI, "https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",)),
        Known("mistral", "Mistral", Dialect.OPENAI, "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",)),
        Known("groq", "Groq", Dialect.OPENAI, "https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
        Known("xai", "xAI", Dialect.OPENAI, "https://api.x.ai/v1", ("XAI_API_KEY",)),
        Known("together", "Together", Dialect.OPENAI, "https://api.together.xyz/v1", ("TOGETHER_API_KEY",)),
        Known("cerebras", "Cerebras", Dialect.OPENAI, "https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",)),
        Known("ollama", "Ollama", Dialect.OPENAI, "http://127.0.0.1:11434/v1", host_variable="OLLAMA_HOST"),
        Known("lmstudio", "LM Studio", Dialect.OPENAI, "http://127.0.0.1:1234/v1"),
        Known("llamacpp", "llama.cpp", Dialect.OPENAI, "http://127.0.0.1:8080/v1"),
        Known("vllm", "vLLM", Dialect.OPENAI, "http://127.0.0.1:8000/v1"),
    )
}
