/**
 * Starts another main class, and ends the process when stdin ends: a server whose test died, however it
 * died, must not stay.
 */
public final class Leash {
    public static void main(String[] args) throws Exception {
        Thread watch = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (java.io.IOException closed) {
                // The same as the end of input.
            }
            Runtime.getRuntime().halt(0);
        }, "leash");
        watch.setDaemon(true);
        watch.start();
        String[] rest = java.util.Arrays.copyOfRange(args, 1, args.length);
        Class.forName(args[0]).getMethod("main", String[].class).invoke(null, (Object) rest);
    }
}
